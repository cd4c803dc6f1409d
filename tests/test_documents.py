"""Commands and cells of pages that have no test of their own, run as they stand there."""

import json
import shutil
from pathlib import Path

import pytest

from tasks.core.synthetic import make_documents, write_parquet_files
from tests.test_readme import blocks, here, run_script, search_path


@pytest.fixture
def folder(
    tmp_path: Path, dataset: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder in which the pages' commands are typed."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(dataset, tmp_path / "fineweb-edu-gpt2")
    for name, seed in (("fineweb-edu", 5), ("new-dump", 7)):
        (tmp_path / name).mkdir()
        write_parquet_files(tmp_path / name, 1, 60, seed=seed)
    return tmp_path


@pytest.mark.parametrize("page", ["how-to/export", "how-to/grow"])
def test_commands(
    page: str, folder: Path, environment: dict[str, str], api_url: str, vocabulary: Path
) -> None:
    commands = [here(block, vocabulary) for block in blocks(f"docs/{page}.md", "bash")]
    assert sum(block.count("shardmill ") for block in commands) >= 3
    shell = environment | {"PATH": search_path(), "PREFECT_API_URL": api_url}
    run_script("\n".join(commands), folder, shell, folder / "output.log")


def test_training_from_text(folder: Path, vocabulary: Path) -> None:
    first, second = blocks("docs/how-to/train-on-text.md", "python")
    for number in range(2):
        lines = [json.dumps({"text": text}) + "\n" for text in make_documents(40, seed=number)]
        (folder / f"cc-100_{number:02}.jsonl").write_text("".join(lines))
    assert "{00..99}" in first
    for there, replaced in {
        "s3://bucket/cc-100_{00..99}": str(folder / "cc-100_{00..01}"),
        '"gpt2"': f'"{vocabulary}", pattern="gpt2"',
        "/scratch": f"{folder}/scratch",
        "/data": f"{folder}/data",
    }.items():
        first, second = first.replace(there, replaced), second.replace(there, replaced)
    exec(compile(first + "    break\n" + second, "docs/how-to/train-on-text.md", "exec"), {})  # noqa: S102
    assert (folder / "data/cc-100-gpt2/manifest.json").is_file()
