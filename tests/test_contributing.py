"""CONTRIBUTING's drawing of the house: each room that it names is there, and none is missing."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("flows", "tasks", "streaming_ext", "benchmarks")


def drawn() -> Iterator[Path]:
    """The folders of the drawing, each below the one that is indented less."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    drawing = text.partition("## The house\n```text\n")[2].partition("```")[0]
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


def rooms(folder: Path, depth: int) -> Iterator[Path]:
    """Folders of Python files below another one."""
    for room in sorted(folder.iterdir()):
        if room.is_dir() and any(room.glob("*.py")):
            yield room
            if depth > 1:
                yield from rooms(room, depth - 1)


def test_the_drawing_is_true() -> None:
    named = list(drawn())
    assert not [room for room in named if not room.is_dir()]
    there = [room for name in SOURCES for room in rooms(ROOT / name, 1)]
    there += [*rooms(ROOT / "tasks/core", 1), *rooms(ROOT / "streaming_ext/text", 1)]
    there += rooms(ROOT / "streaming_ext", 1)
    assert not sorted(set(there) - set(named))
