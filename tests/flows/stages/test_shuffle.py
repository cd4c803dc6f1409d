"""A run with a shuffle: the same bytes for any number of workers, after kills in either stage."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.command_line import CommandLine, assert_same_dataset, wait_for, workers_of
from tests.flows.conftest import SHUFFLE, Command


def test_sound_and_explained(shardmill: Command, shuffled: Path) -> None:
    verified = shardmill("verify", shuffled, "--deep")
    assert verified.returncode == 0, verified.stdout
    told = json.loads(shardmill("inspect", shuffled, "--json").stdout)
    assert told["shuffled"]["files"] == 5
    assert told["spec"]["shuffle_seed"] == 3
    assert len(told["parts"]) > 5
    shown = shardmill("inspect", shuffled).stdout
    assert "documents shuffled over all parts, seed 3" in shown
    (run,) = told["runs"]
    assert len(run["gathered"]) == len(told["parts"])
    assert len(run["parts"]) == 5
    sample = shardmill("inspect", shuffled, "--split", "train", "--sample", "3").stdout
    assert ".parquet" in sample
    traced = shardmill("trace", shuffled, "--step", "0", "--batch-size", "2").stdout
    assert "row " in traced


def test_other_workers_and_parts(served: CommandLine, shuffled: Path, tmp_path: Path) -> None:
    ended = served.shard(tmp_path / "out", workers=2, part_size="16KiB", **SHUFFLE)
    assert ended.returncode == 0, ended.stderr
    assert_same_dataset(shuffled, tmp_path / "out")
    again = served.shard(tmp_path / "out", workers=2, **SHUFFLE)
    assert again.returncode == 0, again.stderr
    assert not (tmp_path / "out" / "shuffle").exists()


@pytest.mark.parametrize("stage", ["scatter", "gather"])
def test_killed(served: CommandLine, shuffled: Path, tmp_path: Path, stage: str) -> None:
    output = tmp_path / "out"
    run = served.start(*served.shard_arguments(output, workers=2, **SHUFFLE))
    folder = "shuffle/*.json" if stage == "scatter" else "parts/*.json"
    wait_for(lambda: len(list(output.glob(folder))) > 1 or run.poll() is not None)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    assert not (output / "manifest.json").exists()
    done = {file: file.stat().st_mtime_ns for file in output.glob(folder)}
    assert len(done) > 1
    ended = served.shard(output, workers=2, **SHUFFLE)
    assert ended.returncode == 0, ended.stderr
    assert_same_dataset(shuffled, output)
    if stage == "gather":
        assert all(file.stat().st_mtime_ns == changed for file, changed in done.items())


def test_workers_killed(served: CommandLine, shuffled: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    run = served.start(*served.shard_arguments(output, workers=2, **SHUFFLE))
    wait_for(lambda: list(output.glob("parts/*.json")) or run.poll() is not None)
    killed = 0
    for worker in workers_of(run.pid):
        worker.kill()
        killed += 1
    run.communicate()
    assert killed
    if run.returncode:  # whatever was in hand failed: the same command does the rest
        assert served.shard(output, workers=2, **SHUFFLE).returncode == 0
    assert_same_dataset(shuffled, output)


def test_stopped(served: CommandLine, shuffled: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    run = served.start(*served.shard_arguments(output, workers=2, **SHUFFLE))
    wait_for(lambda: list(output.glob("parts/*.json")) or run.poll() is not None)
    began = time.monotonic()
    os.killpg(run.pid, signal.SIGINT)
    run.communicate()
    assert run.returncode == 130
    assert time.monotonic() - began < 60
    assert not workers_of(run.pid)
    assert served.shard(output, workers=1, **SHUFFLE).returncode == 0
    assert_same_dataset(shuffled, output)


def test_object_storage(served: CommandLine, shuffled: Path, bucket: str, tmp_path: Path) -> None:
    output = f"s3://{bucket}/shuffled"
    command = served.where(**{name: os.environ[name] for name in os.environ if "AWS" in name})
    ended = command.shard(output, workers=2, **SHUFFLE)
    assert ended.returncode == 0, ended.stderr
    from tasks.core.storage import open_storage

    storage = open_storage(output)
    names = [name for name in storage.list() if not name.startswith("runs/")]
    expected = sorted(
        file.relative_to(shuffled).as_posix()
        for file in shuffled.rglob("*")
        if file.is_file() and not file.is_relative_to(shuffled / "runs")
    )
    assert names == expected
    for name in names:
        assert storage.read(name) == (shuffled / name).read_bytes()
