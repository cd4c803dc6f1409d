"""Every block of bash and Python on the pages of docs/ is run, in the order of its page."""

import re
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.synthetic import make_documents
from tests.command_line import CommandLine
from tests.streaming_ext.build import build_dataset
from tests.test_readme import BLOCK, ROOT

DOCS = ROOT / "docs"
FENCE = re.compile(r"^ *```(?P<language>bash|python)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
# Pages whose blocks need servers, or text and models of their own: the test that runs them.
ELSEWHERE = {
    "coming-from.md": "test_coming_from.py",
    "how-to/evaluate.md": "streaming_ext/trainers/recipes.py",
    "how-to/hub.md": "flows/storage/test_hub.py",
    "how-to/object-storage.md": "flows/storage/test_hub.py",
    "how-to/plan.md": "flows/test_plan.py",
    "how-to/several-hosts.md": "deployments/test_commands.py",
    "how-to/sft.md": "streaming_ext/transforms/test_docs.py",
    "how-to/trainers": "streaming_ext/trainers/recipes.py",
    "how-to/transform-steps.md": "streaming_ext/transforms/test_docs.py",
    "how-to/transform-workers.md": "streaming_ext/transforms/test_docs.py",
    "how-to/transforms.md": "streaming_ext/transforms/test_docs.py",
    "how-to/watch.md": "test_readme.py",
    "operate/clusters.md": "deployments/test_ansible.py",
    "reference/export-formats.md": "tasks/core/exports/test_other_readers.py",
    "start/first-training-run.md": "test_examples.py",
    "start/install.md": "test_readme.py",
}


def pages() -> Iterator[str]:
    """Pages with blocks that no other test runs."""
    for path in sorted(DOCS.rglob("*.md")):
        page = str(path.relative_to(DOCS))
        if FENCE.search(path.read_text()) and not page.startswith(tuple(ELSEWHERE)):
            yield page


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, dataset: Path, vocabulary: Path) -> Path:
    """What the pages name: folders of text, datasets, and the result of `shardmill demo`."""
    folder = tmp_path_factory.mktemp("pages")
    for name, number in (("fineweb-edu", 5), ("new-dump", 7), ("demo-output/sources", 9)):
        (folder / name).mkdir(parents=True)
        rows = [
            {
                "text": text,
                "language": "en" if row % 2 else "de",
                "language_score": row / 60,
                "url": f"https://example.org/{row}",
            }
            for row, text in enumerate(make_documents(60, seed=number))
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / name / "000_00000.parquet")
    for number in range(2):
        lines = [f'{{"text": "{text[:99].split(chr(10))[0]}"}}' for text in make_documents(40, seed=number)]
        path = folder / f"bucket/cc-100_{number:02}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines))
    (folder / "demo-output/demo.tiktoken").write_bytes(vocabulary.read_bytes())
    shutil.copytree(dataset, folder / "demo-output/dataset")
    shutil.copytree(dataset, folder / "fineweb-edu-gpt2")
    texts = [f"A document of its own, number {number}." * 9 for number in range(50)]
    build_dataset(
        folder / "books-gpt2", [texts], tokenizer=str(vocabulary), sequence_length=128,
        shard_size=2**14, holdout_fraction=0.1,
    )  # fmt: skip
    for name in ("fineweb-edu-gpt2", "web", "code", "math"):
        shutil.copytree(dataset, folder / "bucket" / name)
    (folder / "shard.yaml").write_text(
        f"sources: [fineweb-edu]\ntokenizer: {vocabulary}\npattern: gpt2\n"
    )
    return folder


Here = Callable[[str], str]


@pytest.fixture
def here(data: Path, tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """The text of a block with folders and a tokenizer that exist here."""
    folder = tmp_path / "page"
    shutil.copytree(data, folder)
    monkeypatch.chdir(folder)

    def replaced(text: str) -> str:
        for shown, real in {
            "s3://bucket": f"{folder}/bucket",
            '"/scratch': f'"{folder}/scratch',
            '"/data': f'"{folder}/data',
            "/disk": f"{folder}/disk",
            "{00..99}": "{00..01}",
            "--tokenizer gpt2": f"--tokenizer {vocabulary} --pattern gpt2",
            'tokenizer="gpt2"': f'tokenizer="{vocabulary}", pattern="gpt2"',
            "node_local=True": "node_local=False",  # True needs the other node
            "web math": "bucket/web bucket/math",
        }.items():
            text = text.replace(shown, real)
        older = [path.stem for path in folder.glob("fineweb-edu-gpt2/generations/*.json")]
        return text.replace("3b1e09", older[0][:6]) if older else text

    return replaced


@pytest.mark.parametrize("page", pages())
def test_blocks(page: str, here: Here, served: CommandLine) -> None:
    names: dict[str, object] = {}
    for block in FENCE.finditer((DOCS / page).read_text()):
        text = here(textwrap.dedent(block["text"]))
        if block["language"] == "python":
            exec(compile(text, page, "exec"), names)  # noqa: S102 - what the page shows
            continue
        for line in text.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line)
            assert program == "shardmill", line
            if words == ["demo"]:
                continue  # tests/flows runs it; `data` holds what it makes
            ended = served.run(*words)
            assert ended.returncode == 0, (line, ended.stdout, ended.stderr)


def test_other_tests_name_the_pages_that_they_run() -> None:
    for page, test in ELSEWHERE.items():
        assert (DOCS / page).exists()
        assert f"docs/{page}" in (ROOT / "tests" / test).read_text(), (page, test)


def test_every_block_has_a_language() -> None:
    """So that no command escapes these tests."""
    for path in DOCS.rglob("*.md"):
        fences = re.findall(r"^ *```(.*)$", path.read_text(), re.MULTILINE)
        assert set(fences[::2]) <= {"bash", "python", "text", "json", "yaml", "nginx"}, path
        assert set(fences[1::2]) <= {""}, path


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", "examples/README.md"])
def test_links_outside_the_site(page: str) -> None:
    """`make docs` checks those of the site."""
    path = ROOT / page
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert not [link for link in links if not (path.parent / link).exists()]


def test_how_to_pages_are_short() -> None:
    for path in DOCS.glob("how-to/*.md"):
        words = len(re.findall(r"\w+", BLOCK.sub("", path.read_text())))
        assert words <= 600, (path.name, words)
