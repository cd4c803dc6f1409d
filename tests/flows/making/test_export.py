"""`shardmill export` as a user runs it: the command, a kill halfway, object storage."""

import json
import os
import shutil
import signal
from contextlib import suppress

import pytest

from streaming_ext.store import open_storage
from tasks.core.check.export import verify_export
from tests.command_line import file_hashes, succeeded, wait_for
from tests.servers.storage.swift import download_all, upload
from tests.tasks.core.exports.exporting import exported, make_dataset


def test_the_command_makes_checks_and_describes(served, shardmill, dataset, tmp_path) -> None:
    """Two processes make the same bytes as one, in whatever order the parts come."""
    output = tmp_path / "out"
    words = ("export", "megatron", dataset, "--output", output, "--workers", 2)
    ended = succeeded(served.run(*words, "--verify"))
    assert f"{output}: megatron of {dataset}; holdout " in ended.stdout
    assert f"{output}: sound" in ended.stdout
    assert file_hashes(output) == file_hashes(exported(dataset, tmp_path / "one", "megatron"))
    again = succeeded(served.run(*words, "--verify", "--json"))
    assert "done" not in again.stdout
    assert json.loads(again.stdout)["sound"]
    printed = json.loads(shardmill("inspect", output, "--json").stdout)
    assert printed["dataset"] == str(dataset)
    assert printed["identity"]["export"] == "megatron"
    assert sorted(printed["splits"]) == ["holdout", "train"]


def test_a_killed_export_resumes(served, dataset, tmp_path) -> None:
    """A shard that is a pipe holds up the run, so that the kill comes at a known moment."""
    source, output = tmp_path / "source", tmp_path / "out"
    shutil.copytree(dataset, source)
    shard = sorted((source / "train/00003").iterdir())[0]
    data = shard.read_bytes()
    shard.unlink()
    os.mkfifo(shard)
    words = ("export", "nanogpt", source, "--output", output, "--workers", 1)
    run = served.start(*words)
    held: list[int] = []  # the pipe, open for writing: its reader waits

    def is_read() -> bool:
        with suppress(OSError):  # nobody reads it yet
            held.append(os.open(shard, os.O_WRONLY | os.O_NONBLOCK))
        return bool(held)

    wait_for(is_read, run)
    os.killpg(run.pid, signal.SIGKILL)
    _, said = run.communicate()
    os.close(held.pop())
    done = len([*output.glob("export/*.json")])  # the one worker takes parts in any order
    assert done < 5, said
    assert not (output / "export.json").exists()
    shard.unlink()
    shard.write_bytes(data)
    ended = succeeded(served.run(*words))
    assert f"5, {5 - done} of them new" in ended.stdout
    assert file_hashes(output) == file_hashes(exported(source, tmp_path / "undisturbed", "nanogpt"))


@pytest.mark.parametrize("name", ["megatron", "parquet"])
def test_from_and_to_object_storage(s3, bucket, tmp_path, name) -> None:
    """A file of many parts is assembled on scratch and uploaded last; other files at once."""
    dataset = make_dataset(tmp_path, shard_samples=100).root
    local = exported(dataset, tmp_path / "local", name)
    upload(s3, bucket, "in", dataset)
    exported(f"s3://{bucket}/in", f"s3://{bucket}/out", name)
    report = verify_export(open_storage(f"s3://{bucket}/out"))
    assert report.sound
    assert not report.not_compared
    copy = download_all(s3.url, bucket, "out", tmp_path / "copy")
    for root, named in ((copy, f"s3://{bucket}/in"), (local, str(dataset))):
        text = (root / "export.json").read_text()
        assert json.loads(text)["dataset"] == named
        (root / "export.json").write_text(text.replace(named, "the dataset"))
    assert file_hashes(copy) == file_hashes(local)
