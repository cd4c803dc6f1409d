"""`shardmill copy` and `merge` as a user runs them: the commands, a kill, object storage."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from streaming_ext.format.layout import BUILD
from streaming_ext.store import open_storage
from streaming_ext.store.disk import INCOMING
from streaming_ext.store.s3 import S3
from streaming_ext.store.scratch import take_scratch
from tasks.core.build.engine import mark_of
from tasks.core.check.export import compare_copy
from tasks.core.check.verify import verify
from tasks.core.derive.config import CopyConfig
from tasks.core.derive.move import plan_copy
from tests.command_line import CommandLine, succeeded, wait_for
from tests.flows.conftest import Command, files_of
from tests.servers.storage.swift import SwiftServer, aws_environment
from tests.tasks.core.build_dataset import build_dataset
from tests.tasks.core.exports.exporting import content
from tests.tasks.core.moving.moved import copied, merged
from tests.test_readme import blocks


def assert_summarized(said: str, output: Path, *datasets: Path) -> None:
    """The closing summary of a command that made one dataset of others."""
    manifests = [json.loads((each / "manifest.json").read_text()) for each in datasets]
    splits = [split for manifest in manifests for split in manifest["splits"].values()]
    facts = dict(re.findall(r"^(\w+) +(\S.*)$", said, re.MULTILINE))
    assert re.fullmatch(r"[1-9]\d* done, 0 done before", facts["parts"])
    assert facts["tokens"] == f"{sum(split['tokens'] for split in splits):,}"
    assert re.fullmatch(r"[\d.]+ [kM]?B", facts["written"])
    assert re.fullmatch(r"0:\d\d:\d\d \([\d.,]+ MB/s\)", facts["time"])
    made = json.loads((output / "manifest.json").read_text())
    assert f"{output}: {len(made['parts'])} parts, {facts['tokens']} tokens; holdout " in said


def test_copy_and_merge(
    served: CommandLine,
    dataset: Path,
    tmp_path: Path,
    shardmill: Command,
) -> None:
    output = tmp_path / "copy"
    ended = succeeded(served.run("copy", dataset, output, "--workers", 2))
    assert_summarized(ended.stdout, output, dataset)
    assert files_of(output) == files_of(dataset)
    both = tmp_path / "both"
    ended = succeeded(served.run("merge", dataset, output, "--output", both, "--repeats"))
    assert_summarized(ended.stdout, both, dataset, output)
    compared = succeeded(shardmill("copy", dataset, output, "--verify-only", "--json"))
    assert json.loads(compared.stdout)["sound"]
    (output / "train/index.json").unlink()
    lost = shardmill("copy", dataset, output, "--verify-only")
    assert lost.returncode == 1
    assert "train/index.json\n  missing" in lost.stdout
    refused = shardmill("copy", dataset, dataset)
    assert refused.returncode == 2
    assert "the dataset itself" in refused.stderr


@pytest.mark.parametrize("command", ["copy", "extend"])
def test_what_a_run_left_that_was_killed_at_its_end_is_removed(
    served: CommandLine, dataset: Path, tmp_path: Path, command: str
) -> None:
    """The same command says that nothing is to be done."""
    output = tmp_path / "out"
    copied(dataset, output)
    words = ["copy", dataset, output] if command == "copy" else ["extend", output, served.sources]
    before = files_of(output)
    take_scratch(tmp_path / ".out.scratch")
    (output / INCOMING).mkdir()
    storage = open_storage(str(output))
    if command == "copy":
        config = CopyConfig(dataset=str(dataset), output=str(output))
        storage.put(BUILD, mark_of(plan_copy(config, storage)))
    ended = succeeded(served.run(*words))
    assert ended.stdout.startswith(f"{output} is complete; nothing to do.\n")
    assert files_of(output) == before
    assert not list(tmp_path.glob(".out*"))
    assert not list(output.glob(".*"))
    assert not (output / BUILD).exists()


@pytest.mark.soak
def test_the_commands_of_the_document(
    embedded: CommandLine,
    s3: SwiftServer,
    bucket: str,
    dataset: Path,
    tmp_path: Path,
    vocabulary: Path,
) -> None:
    """With the session's dataset, and another of the same options; then what reads a merged one."""
    texts = [f"A document of its own, number {number}." * 9 for number in range(50)]
    other = build_dataset(
        tmp_path / "built", [texts], tokenizer=str(vocabulary), sequence_length=128,
        shard_size=2**14, holdout_fraction=0.1,
    )  # fmt: skip
    named = {"fineweb-edu-gpt2": dataset, "books-gpt2": other}
    commands = [
        line
        for block in blocks("docs/how-to/copy-merge-subset.md", "bash")
        for line in _lines(block)
    ]
    assert len(commands) >= 5
    runs = embedded.where(**aws_environment(s3.url))

    def actual(word: str) -> str:
        if word.startswith("s3://bucket/"):
            return word.replace("s3://bucket/", f"s3://{bucket}/")
        is_new = word in {"backup", "both-gpt2", "tiny-gpt2", "small-gpt2"}
        return str(tmp_path / word) if is_new else str(named.get(word, word))

    for command in commands:
        program, *words = command.split()
        assert program == "shardmill"
        succeeded(runs.run(*map(actual, words)))
    both = tmp_path / "both-gpt2"
    succeeded(runs.run("verify", "--deep", both))
    assert "merged         of 2 datasets" in runs.run("inspect", both).stdout
    succeeded(runs.run("trace", both, "--step", 0, "--batch-size", 4, "--ranks", 1))
    again = succeeded(runs.run("merge", dataset, other, "--output", both))
    assert "done" not in again.stdout


def _lines(block: str) -> list[str]:
    return block.replace("\\\n", " ").strip().splitlines()


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_copy_resumes(
    served: CommandLine, dataset: Path, tmp_path: Path, number: int
) -> None:
    """A shard that is a pipe holds the run up, so that it is stopped in the middle."""
    source, output = tmp_path / "source", tmp_path / "copy"
    shutil.copytree(dataset, source)
    shard = next((source / "train/00003").iterdir())
    data = shard.read_bytes()
    shard.unlink()
    os.mkfifo(shard)
    words = ("copy", source, output, "--workers", 2)
    run = served.start(*words)
    others = len([*(dataset / "parts").iterdir()]) - 1
    wait_for(lambda: len([*output.glob("parts/*")]) == others or run.poll() is not None)
    beside = served.run("copy", source, output)
    assert beside.returncode == 2, beside.stderr
    assert "Another run is writing" in beside.stderr
    os.killpg(run.pid, number)
    run.communicate()
    assert not (output / "manifest.json").exists()
    assert served.run("verify", output).returncode != 0
    shard.unlink()
    shard.write_bytes(data)
    succeeded(served.run(*words))
    assert files_of(output) == files_of(dataset)


def test_object_storage(
    s3: SwiftServer,
    bucket: str,
    tmp_path: Path,
    rank_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Disk to store, store to store, a merge that the store makes by itself, and back to disk."""
    texts = [[f"Document {number}." * 40 for number in range(20)]] * 2
    local = build_dataset(tmp_path / "one", texts, tokenizer=str(rank_path), shard_size=2**16)
    one, two, both = (f"s3://{bucket}/{name}" for name in ("one", "two", "both"))
    copied(local, one)
    copied(one, two)
    assert compare_copy(open_storage(one), open_storage(two), workers=4).sound
    requested: list[str] = []
    copy = S3.copy

    def noted(self: S3, bucket: str, key: str, to: str) -> bool:
        requested.append(to)
        return copy(self, bucket, key, to)

    with monkeypatch.context() as patch:
        patch.setattr(S3, "copy", noted)
        merged([one, two], both, repeats=True)
    expected = tmp_path / "both"
    merged([local, local], expected, repeats=True)
    assert {f"both/{path}" for path in content(expected) if "/shard." in path} <= set(requested)
    copied(both, tmp_path / "back")
    assert content(tmp_path / "back") == content(expected)
    assert verify(open_storage(str(expected))).sound
