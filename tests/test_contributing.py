"""CONTRIBUTING's drawing of the folders: each one exists, and none is missing."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DRAWN = ("flows", "tasks", "tasks/core", "streaming_ext", "streaming_ext/text", "benchmarks")


def drawn() -> Iterator[Path]:
    """Yield the folders of the drawing; each lies in the one above it that is indented less."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    drawing = text.partition("## The house\n\n```text\n")[2].partition("```")[0]
    above: dict[int, Path] = {-1: ROOT}
    for line in drawing.splitlines():
        depth = len(line) - len(line.lstrip())
        parent = above[max(other for other in above if other < depth)]
        names = re.match(r"((?:\w+/ *)+)", line.lstrip())
        assert names, line
        for name in names[1].split():
            above = {other: path for other, path in above.items() if other < depth}
            above[depth] = parent / name
            yield parent / name


def packages(folder: Path) -> Iterator[Path]:
    """Return the folders in a folder that hold Python files."""
    return (path for path in sorted(folder.iterdir()) if any(path.glob("*.py")))


def test_the_drawing_is_true() -> None:
    named = list(drawn())
    assert not [folder for folder in named if not folder.is_dir()]
    existing = {folder for name in DRAWN for folder in packages(ROOT / name)}
    assert existing
    assert not sorted(existing - set(named))


def test_files_that_it_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    names = re.findall(r"(?:streaming_ext|tasks|flows|tests)/[\w/]+\.py", text)
    assert len(names) > 8
    assert not [name for name in names if not (ROOT / name).is_file()]
