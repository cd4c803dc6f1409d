"""Runs of two phases, stopped, killed and starved in either: what ends, and the same bytes after.

As `test_stopping.py` and `storage/test_faults.py` have it for runs of one phase. A kill of all
processes and Ctrl+C are in `test_shuffle.py` and `test_deduplicate.py`.
"""

import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command_line import (
    PATIENCE_SECONDS,
    CommandLine,
    assert_same_dataset,
    is_alive,
    kill_group,
    output_of,
    succeeded,
    wait_for,
    workers_of,
)
from tests.flows.conftest import SHUFFLE
from tests.servers import shared
from tests.servers.namespaces import CAN_HIDE

pytestmark = pytest.mark.soak  # two to four commands each

Kind = dict[str, object]
KINDS: dict[str, Kind] = {
    "shuffled": {**SHUFFLE},
    "deduplicated": {"deduplicate": "exact"},
    "both": {**SHUFFLE, "deduplicate": "exact"},
}
PHASES = {"sort": "shuffle/*.json", "merge": "parts/*.json"}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="session")
def long(slow: CommandLine) -> CommandLine:
    """Sources of some seconds' work, one of them there twice; many parts in the second phase."""

    def make(folder: Path) -> None:
        for file in slow.sources.glob("*.parquet"):
            shutil.copy(file, folder / file.name)
        shutil.copy(min(slow.sources.glob("*.parquet")), folder / "again.parquet")

    return replace(slow, sources=shared.folder("slow copies", make), shard_size="16KiB")


@pytest.fixture
def whole(long: CommandLine, kind: Kind) -> Path:
    """What an undisturbed run makes of them."""

    def make(folder: Path) -> None:
        succeeded(long.shard(folder / "out", **kind))

    return shared.folder("two phases " + " ".join(map(str, kind.values())), make) / "out"


def stand_still_in(
    command: CommandLine, output: Path, phase: str, kind: Kind
) -> "subprocess.Popen[str]":
    """Start a run; come back when it has recorded something in a phase, its workers suspended."""
    run = command.start(*command.shard_arguments(output, engine="reference", **kind))
    try:
        wait_for(lambda: list(output.glob(PHASES[phase])) or run.poll() is not None)
        for worker in workers_of(run.pid):
            worker.suspend()
        assert run.poll() is None, output_of(run, seconds=PATIENCE_SECONDS)
        assert phase == "merge" or not list(output.glob(PHASES["merge"]))
        assert not (output / "manifest.json").exists()
    except BaseException:
        kill_group(run)
        raise
    return run


def goes_on(command: CommandLine, output: Path, kind: Kind, whole: Path) -> None:
    """The same command, to the same bytes."""
    succeeded(command.shard(output, **kind))
    assert_same_dataset(whole, output)
    assert not (output / "shuffle").exists()


@pytest.mark.parametrize("phase", PHASES)
def test_the_parent_killed(
    long: CommandLine, whole: Path, kind: Kind, phase: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    run = stand_still_in(long, output, phase, kind)
    workers = workers_of(run.pid)
    assert workers
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    for worker in workers:
        worker.resume()
    wait_for(lambda: not [worker for worker in workers if is_alive(worker)])
    goes_on(long, output, kind, whole)


@pytest.mark.skipif(not CAN_HIDE, reason="there are no mount namespaces here")
def test_a_full_disk(long: CommandLine, whole: Path, kind: Kind, tmp_path: Path) -> None:
    """Full, then full again on a larger one, then with room: the same bytes."""
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    sizes = {file: file.stat().st_size for file in whole.rglob("*") if file.is_file()}
    ids = sum(size for file, size in sizes.items() if file.name.endswith(".zstd"))
    script = f"""
        mount -t tmpfs -o size={ids // 2} tmpfs {disk}; "$@"; echo "ended: $?"
        ls {disk}/out; mount -o remount,size={{second}} {disk}; "$@"; echo "ended: $?"
        ls {disk}/out; mount -o remount,size=1g {disk}; "$@"; echo "ended: $?"
        cp -r {disk}/out {copy}
    """.format(second=2 * ids + 2**20)
    prefix = ("unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh")
    arguments = long.shard_arguments(disk / "out", scratch=tmp_path / "scratch", **kind)
    run = long.start(*arguments, prefix=prefix)
    stdout, stderr = output_of(run, seconds=3 * PATIENCE_SECONDS)
    _, *printed = stdout.split("ended: ")
    assert [words[:1] for words in printed] == ["1", "1", "0"], stdout + stderr
    assert "manifest.json" not in printed[0] + printed[1]
    assert "shuffle" in printed[1]
    assert "no space left on device" in stderr
    assert "Traceback" not in stderr
    assert_same_dataset(whole, copy)
