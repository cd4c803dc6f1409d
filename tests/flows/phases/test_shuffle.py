"""A run with a shuffle: the same bytes for any number of workers, after kills in either phase."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.command_line import (
    PATIENCE_SECONDS,
    CommandLine,
    assert_same_dataset,
    kill_group,
    output_of,
    succeeded,
    wait_for,
    workers_of,
)
from tests.flows.conftest import SHUFFLE, Command

TRIES = 10


def test_sound_and_explained(shardmill: Command, shuffled: Path) -> None:
    succeeded(shardmill("verify", shuffled, "--deep"))
    printed = json.loads(shardmill("inspect", shuffled, "--json").stdout)
    assert printed["shuffled"]["files"] == 5
    assert printed["spec"]["shuffle_seed"] == 3
    assert len(printed["parts"]) > 5
    shown = shardmill("inspect", shuffled).stdout
    assert "documents shuffled over all parts, seed 3" in shown
    (run,) = printed["runs"]
    assert len(run["merged"]) == len(printed["parts"])
    assert len(run["parts"]) == 5
    sample = shardmill("inspect", shuffled, "--split", "train", "--sample", "3").stdout
    assert ".parquet" in sample
    traced = shardmill("trace", shuffled, "--step", "0", "--batch-size", "2").stdout
    assert "row " in traced


def test_other_workers_and_parts(served: CommandLine, shuffled: Path, tmp_path: Path) -> None:
    succeeded(served.shard(tmp_path / "out", workers=2, part_size="16KiB", **SHUFFLE))
    assert_same_dataset(shuffled, tmp_path / "out")
    succeeded(served.shard(tmp_path / "out", workers=2, **SHUFFLE))
    assert not (tmp_path / "out" / "shuffle").exists()


def struck(
    command: CommandLine,
    output: Path,
    recorded: str,
    strike: Callable[["subprocess.Popen[str]"], bool],
) -> None:
    """Have something happen to a run amid a phase.

    Args:
        command: runs it, with two workers.
        output: of it.
        recorded: two of these are there by then.
        strike: happens to it until its end; whether that came in time. Where the run was faster,
            another one is made.
    """
    for _ in range(TRIES):
        run = command.start(*command.shard_arguments(output, workers=2, **SHUFFLE))
        wait_for(lambda run=run: len(list(output.glob(recorded))) > 1 or run.poll() is not None)
        if strike(run):
            return
        shutil.rmtree(output)
    raise AssertionError(f"{TRIES} runs were faster")


@pytest.mark.parametrize("phase", ["sort", "merge"])
def test_killed(served: CommandLine, shuffled: Path, tmp_path: Path, phase: str) -> None:
    output = tmp_path / "out"
    folder = "shuffle/*.json" if phase == "sort" else "parts/*.json"

    def kill(run: "subprocess.Popen[str]") -> bool:
        kill_group(run)
        return not (output / "manifest.json").exists()

    struck(served, output, folder, kill)
    done = {file: file.stat().st_mtime_ns for file in output.glob(folder)}
    assert len(done) > 1
    succeeded(served.shard(output, workers=2, **SHUFFLE))
    assert_same_dataset(shuffled, output)
    if phase == "merge":
        assert all(file.stat().st_mtime_ns == changed for file, changed in done.items())


def test_workers_killed(served: CommandLine, shuffled: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    codes: list[int] = []

    def kill_workers(run: "subprocess.Popen[str]") -> bool:
        killed = 0
        for worker in workers_of(run.pid):
            with suppress(psutil.NoSuchProcess):
                worker.kill()
                killed += 1
        output_of(run, seconds=PATIENCE_SECONDS)
        codes.append(run.returncode)
        return killed > 0

    struck(served, output, "parts/*.json", kill_workers)
    if codes[-1]:  # whatever was in hand failed: the same command does the rest
        succeeded(served.shard(output, workers=2, **SHUFFLE))
    assert_same_dataset(shuffled, output)


def test_stopped(served: CommandLine, shuffled: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"

    def stop(run: "subprocess.Popen[str]") -> bool:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGINT)
        _, stderr = output_of(run, seconds=PATIENCE_SECONDS)
        assert not workers_of(run.pid)
        assert run.returncode in {0, 130}, stderr
        return run.returncode == 130

    struck(served, output, "parts/*.json", stop)
    succeeded(served.shard(output, workers=1, **SHUFFLE))
    assert_same_dataset(shuffled, output)


def test_object_storage(served: CommandLine, shuffled: Path, bucket: str, tmp_path: Path) -> None:
    output = f"s3://{bucket}/shuffled"
    command = served.where(**{name: os.environ[name] for name in os.environ if "AWS" in name})
    succeeded(command.shard(output, workers=2, **SHUFFLE))
    from streaming_ext.store import open_storage

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
