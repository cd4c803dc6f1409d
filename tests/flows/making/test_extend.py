"""`shardmill extend` as a user runs it: the command, kills, two at once, object storage."""

import json
import os
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from streaming_ext.format.reading import read_manifest
from streaming_ext.format.schema import content_hash
from streaming_ext.store import open_storage
from tasks.core.check.verify import verify
from tests.command_line import CommandLine, succeeded, wait_for, workers_of
from tests.flows.conftest import Command, files_of
from tests.tasks.core.extending.extended import write_source

TEXTS = [f"A document that came later, number {number}." * 5 for number in range(300)]


@pytest.fixture
def old(dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset, tmp_path / "old"))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    for number in range(4):
        write_source(tmp_path / "new" / f"{number}.parquet", TEXTS[number::4])
    return tmp_path / "new"


def test_extended_by_a_folder(
    served: CommandLine,
    old: Path,
    new: Path,
    shardmill: Command,
) -> None:
    parts = len(read_manifest(open_storage(str(old))).parts)
    parent = content_hash((old / "manifest.json").read_bytes())
    requested = succeeded(shardmill("extend", old, new, "--dry-run", "--json"))
    printed = json.loads(requested.stdout)
    assert (printed["parts"], printed["done"]) == (parts + 4, parts)
    assert printed["todo"] == [str(file) for file in sorted(new.iterdir())]
    assert not (old / "runs/.build.json").exists()
    succeeded(served.run("extend", old, new, "--workers", 1))
    assert verify(open_storage(str(old)), deep=True).findings == ()
    assert verify(open_storage(str(old)), generation=parent[:12]).findings == ()
    shown = shardmill("inspect", old, "--generation", parent[:12], "--json")
    assert len(json.loads(shown.stdout)["parts"]) == parts
    assert re.search(f"generation 0 +{parent}: ", shardmill("inspect", old).stdout)
    refused = shardmill("inspect", old, "--generation", "00000f")
    assert refused.returncode == 2
    assert "no generation has a hash that begins with '00000f'. There are" in refused.stderr


@pytest.mark.soak
def test_killed_and_refused_beside_another(
    served: CommandLine, old: Path, new: Path, tmp_path: Path
) -> None:
    twin = Path(shutil.copytree(old, tmp_path / "twin"))
    before = (old / "manifest.json").read_bytes()
    words = ("extend", old, new, "--workers", 1)
    run = served.start(*words)
    wait_for(lambda: (old / "runs/.build.json").exists() or run.poll() is not None)
    with suppress(psutil.NoSuchProcess, IndexError):
        workers_of(run.pid)[0].suspend()
    assert run.poll() is None
    beside = served.run(*words)
    assert beside.returncode == 2, beside.stderr
    assert "Another run is writing" in beside.stderr
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    assert (old / "manifest.json").read_bytes() == before
    assert verify(open_storage(str(old))).findings == ()
    succeeded(served.run(*words))
    succeeded(served.run("extend", twin, new, "--workers", 2))
    assert files_of(old) == files_of(twin)
    succeeded(served.run(*words))
    assert len(read_manifest(open_storage(str(old))).generations) == 1
