"""`shardmill plan` as a user runs it, and the commands of docs/how-to/plan.md."""

import json

import pytest

import shardmill as shardmill_python
from tests.command_line import CommandLine, succeeded
from tests.test_readme import blocks


def arguments(embedded: CommandLine, *more: object) -> list[object]:
    named = ["--tokenizer", embedded.tokenizer, "--pattern", "gpt2", "--workers", 1]
    return ["plan", embedded.sources, *named, *more]


def test_tells_what_would_be_made_and_what_decides(shardmill, embedded, tmp_path) -> None:
    words = arguments(embedded, "--hosts", 2, "--output", "s3://bucket/x", "--link", "10kbit")
    said = succeeded(shardmill(*words)).stdout
    assert "300" in said.splitlines()[1]
    assert "counted" in said
    (decided,) = [line for line in said.splitlines() if line.startswith("decided by")]
    assert "network" in decided
    ended = succeeded(shardmill(*words, "--json", "--scratch", tmp_path))
    found = json.loads(ended.stdout)
    assert found["documents"] == {"value": pytest.approx(300), "error": 0.0}
    assert found["cost"]["bottleneck"] == "network"
    assert list(tmp_path.iterdir()) == []  # no file is left


def test_the_commands_of_the_document(shardmill, embedded) -> None:
    """The session's sources and vocabulary replace those of the page; so does their size."""
    commands = [line for block in blocks("docs/how-to/plan.md", "bash") for line in _lines(block)]
    assert len(commands) >= 4
    for command in commands:
        program, *words = command.split()
        assert program == "shardmill"
        sources, tokenizer = str(embedded.sources), str(embedded.tokenizer)
        replaced = {
            "fineweb-edu": sources,
            "fineweb-edu/000_00000.parquet": sources,
            "gpt2": tokenizer,
            "4TB": "4GB",
        }
        words = [replaced.get(word, word) for word in words]
        length = ["--sequence-length", 128] if words[0] == "plan" else []
        succeeded(shardmill(*words, "--pattern", "gpt2", *length))


def bench(embedded: CommandLine, *more: object) -> list[object]:
    return ["bench", embedded.tokenizer, embedded.sources, "--pattern", "gpt2", *more]


def test_bench_prints_one_line(shardmill, embedded) -> None:
    ended = succeeded(shardmill(*bench(embedded)))
    (line,) = ended.stdout.splitlines()
    assert line.startswith(f"{embedded.tokenizer}: gigatoken ")
    assert " MB/s per core" in line
    ended = succeeded(shardmill(*bench(embedded, "--json", "--workers", 1)))
    found = json.loads(ended.stdout)
    assert found["workers"] == 1
    assert 0 < found["tokens_per_byte"] < 1
    assert found == shardmill_python.bench(
        str(embedded.tokenizer), str(embedded.sources), pattern="gpt2", workers=1
    ).model_dump(mode="json") | {"rate": found["rate"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench"], "TOKENIZER is missing"),
        (["bench", "gtp2", "a.parquet"], "a.parquet"),
        (["bench", "gpt2"], "SOURCES is missing"),
    ],
)
def test_bench_of_nothing(shardmill, tmp_path, monkeypatch, words, said) -> None:
    monkeypatch.chdir(tmp_path)
    ended = shardmill(*words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr


def _lines(block: str) -> list[str]:
    return block.replace("\\\n", " ").strip().splitlines()
