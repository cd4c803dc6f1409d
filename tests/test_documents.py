"""Every block of bash and Python in docs/, run in the order of its page."""

import ast
import json
import re
import shlex
import shutil
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenDataset
from tasks.core.synthetic import make_documents
from tests.command_line import succeeded
from tests.flows.conftest import Command, shardmill  # noqa: F401
from tests.tasks.core.build_dataset import build_dataset
from tests.test_readme import ROOT

DOCS = ROOT / "docs"
FENCE = re.compile(
    r"^ *```(?P<language>bash|python)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL
)
# Pages whose blocks need servers, or their own text and models, and the test that runs them.
ELSEWHERE = {
    "coming-from.md": "test_coming_from.py",
    "how-to/evaluate.md": "streaming_ext/training/trainers/recipes.py",
    "how-to/hub.md": "flows/storage/test_hub.py",
    "how-to/object-storage.md": "flows/storage/test_hub.py",
    "how-to/plan.md": "flows/test_plan.py",
    "how-to/python.md": "flows/test_functions.py",
    "how-to/run-on-a-schedule.md": "deployments/test_commands.py",
    "how-to/several-hosts.md": "deployments/test_commands.py",
    "how-to/sft.md": "streaming_ext/transforms/test_docs.py",
    "how-to/trainers.md": "streaming_ext/training/trainers/recipes.py",
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
    """Yield the pages with blocks that no other test runs."""
    for path in sorted(DOCS.rglob("*.md")):
        page = str(path.relative_to(DOCS))
        if FENCE.search(path.read_text()) and not page.startswith(tuple(ELSEWHERE)):
            yield page


@pytest.fixture(scope="module")
def data(tmp_path_factory, dataset, vocabulary) -> Path:
    """The folders that the pages name: text, datasets, and the result of `shardmill demo`."""
    folder = tmp_path_factory.mktemp("pages")
    for name, number in (
        ("fineweb-edu/000_00000", 5),
        ("fineweb-edu/001_00000", 6),
        ("new-dump/000_00000", 7),
        ("demo-output/sources/000_00000", 9),
    ):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {
                "text": text,
                "language": "en" if row % 2 else "de",
                "language_score": row / 30,
                "url": f"https://example.org/{row}",
            }
            for row, text in enumerate(make_documents(30, seed=number))
        ]
        pq.write_table(pa.Table.from_pylist(rows), path)
    (folder / "evaluations").mkdir()
    question = json.dumps({"question": make_documents(1, seed=5)[0]})
    (folder / "evaluations/quiz.jsonl").write_text(question)
    (folder / "bucket").mkdir()
    for number in range(2):
        lines = [json.dumps({"text": text}) for text in make_documents(40, seed=number)]
        (folder / f"bucket/cc-100_{number:02}.jsonl").write_text("\n".join(lines))
    (folder / "demo-output/demo.tiktoken").write_bytes(vocabulary.read_bytes())
    shutil.copytree(dataset, folder / "demo-output/dataset")
    shutil.copytree(dataset, folder / "fineweb-edu-gpt2")
    texts = [f"A document of its own, number {number}." * 9 for number in range(50)]
    build_dataset(
        folder / "built",
        [texts],
        tokenizer=str(vocabulary),
        sequence_length=128,
        shard_size=2**14,
        holdout_fraction=0.1,
    ).rename(folder / "books-gpt2")
    for name in ("fineweb-edu-gpt2", "web", "code", "math"):
        shutil.copytree(dataset, folder / "bucket" / name)
    (folder / "shard.yaml").write_text(
        f"sources: [fineweb-edu]\ntokenizer: {vocabulary}\npattern: gpt2\n"
    )
    return folder


@pytest.fixture(scope="module", autouse=True)
def root_stays_as_it_is() -> Iterator[None]:
    """Check that no page leaves a file in the repository; tools keep theirs in dot folders."""
    before = {path.name for path in ROOT.iterdir()}
    yield
    made = {path.name for path in ROOT.iterdir()} - before - {"build"}  # the built site
    assert not {name for name in made if not name.startswith(".")}


Localize = Callable[[str], str]


@pytest.fixture
def localize(data, tmp_path, vocabulary, monkeypatch) -> Localize:
    """Replaces the folders and the tokenizer of a block by some that exist here."""
    folder = tmp_path / "page"
    shutil.copytree(data, folder)
    monkeypatch.chdir(folder)

    def replaced(text: str) -> str:
        for shown, real in {
            "s3://bucket": f"{folder}/bucket",
            '"/scratch': f'"{folder}/scratch',
            '"/data': f'"{folder}/data',
            "/disk": f"{folder}/disk",
            '"cache': f'"{folder}/cache',
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


# The command that makes what a page needs from another page.
BEFORE = {"how-to/import.md": "export megatron fineweb-edu-gpt2 --output fineweb-edu-megatron"}
QUICK = {"inspect", "trace", "verify"}  # no Prefect run, so they run in this process


@pytest.mark.filterwarnings(  # warnings of the stock reader
    "ignore:The given NumPy array is not writable:UserWarning",
    "ignore:unclosed file:ResourceWarning",
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning",
)
@pytest.mark.parametrize("page", list(pages()))
def test_blocks(
    page,
    localize,
    served,
    shardmill,  # noqa: F811
) -> None:
    names: dict[str, object] = {}
    opened: list[StreamingTokenDataset] = []
    if page in BEFORE:
        assert served.run(*BEFORE[page].split()).returncode == 0
    for block in FENCE.finditer((DOCS / page).read_text()):
        text = localize(textwrap.dedent(block["text"]))
        if "import webdataset" in text:
            continue  # tests/tasks/core/exports/test_other_readers.py, in `make interop`
        if block["language"] == "python":
            exec(compile(text, page, "exec"), names)  # noqa: S102 - what the page shows
            opened += [each for each in names.values() if isinstance(each, StreamingTokenDataset)]
            continue
        for line in text.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line)
            assert program == "shardmill", line
            if words == ["demo"]:
                continue  # tests/flows runs it; `data` holds its result
            succeeded((shardmill if words[0] in QUICK else served.run)(*words))
    for dataset in opened:
        dataset.close()  # it may read ahead, into a folder that is removed


def test_readme_python(localize) -> None:
    (block,) = (
        b["text"]
        for b in FENCE.finditer((ROOT / "README.md").read_text())
        if b["language"] == "python"
    )
    names: dict[str, Any] = {}
    exec(compile(localize(block) + "    break\n", "README.md", "exec"), names)  # noqa: S102
    names["dataset"].close()
    assert names["batch"]["tokens"].shape == (8, 2048)


def test_other_tests_name_the_pages_that_they_run() -> None:
    for page, test in ELSEWHERE.items():
        assert (DOCS / page).exists()
        assert f"docs/{page}" in (ROOT / "tests" / test).read_text(), (page, test)


def test_the_site_and_the_changelog_name_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    footer = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["copyright"]
    assert footer.startswith(f"Shardmill {version},")
    (newest, *_) = re.findall(r"^## (\d\S*) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest[0] == version
    assert date.fromisoformat(newest[1])


def test_every_block_has_a_language() -> None:
    """A block without one would escape these tests."""
    for path in DOCS.rglob("*.md"):
        fences = re.findall(r"^ *```(\w*)", path.read_text(), re.MULTILINE)
        assert set(fences[::2]) <= {"bash", "python", "text", "json", "yaml", "nginx"}, path
        assert set(fences[1::2]) <= {""}, path


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", "examples/README.md"]
)
def test_links_outside_the_site(page) -> None:
    """`make docs` checks the links of the site."""
    path = ROOT / page
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert not [link for link in links if not (path.parent / link).exists()]


def _messages() -> Iterator[str]:
    """Yield the strings of the source, with a mark for each value in them."""
    for folder in ("flows", "tasks", "streaming_ext"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                    yield "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield re.sub(r"\{\w+\}", "…", node.value)


def test_messages_of_troubleshooting_exist() -> None:
    page = (DOCS / "operate/troubleshooting.md").read_text()
    shown = re.findall(r"^### (.*)$", page, re.MULTILINE)
    assert len(shown) >= 20
    known = list(_messages())
    for message in shown:
        if message == "Could not connect to the endpoint URL":
            continue  # botocore's message
        fragments = [text for text in message.split("…") if text.strip()]
        assert any(all(fragment in text for fragment in fragments) for text in known), message


def test_how_to_pages_are_short() -> None:
    block = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
    for path in DOCS.glob("how-to/*.md"):
        words = len(re.findall(r"\w+", block.sub("", path.read_text())))
        assert words <= 600, (path.name, words)


def test_the_pages_are_short() -> None:
    """The page of options does not count: it is generated."""
    pages = {ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")}
    pages -= {DOCS / "reference/options.md"}
    assert sum(len(re.findall(r"\w+", path.read_text())) for path in pages) <= 26_000


def test_every_page_is_in_the_navigation() -> None:
    settings = (ROOT / "zensical.toml").read_text()
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert not [page for page in pages if f'"{page}"' not in settings]
