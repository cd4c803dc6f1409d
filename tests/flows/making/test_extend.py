"""`shardmill extend` as a user runs it."""

import json
import re
import shutil
from pathlib import Path

import pytest

from streaming_ext.format.reading import read_manifest
from streaming_ext.format.schema import content_hash
from streaming_ext.store import open_storage
from tasks.core.check.verify import verify
from tests.command_line import refused, succeeded
from tests.tasks.core.extending.extended import write_source

TEXTS = [f"A document that came later, number {number}." * 5 for number in range(300)]


@pytest.fixture
def old(dataset, tmp_path) -> Path:
    return Path(shutil.copytree(dataset, tmp_path / "old"))


@pytest.fixture
def new(tmp_path) -> Path:
    for number in range(4):
        write_source(tmp_path / "new" / f"{number}.parquet", TEXTS[number::4])
    return tmp_path / "new"


def test_extended_by_a_folder(served, old, new, shardmill) -> None:
    parts = len(read_manifest(open_storage(str(old))).parts)
    parent = content_hash((old / "manifest.json").read_bytes())
    printed = json.loads(succeeded(shardmill("extend", old, new, "--dry-run", "--json")).stdout)
    assert (printed["parts"], printed["done"]) == (parts + 4, parts)
    assert printed["todo"] == [str(file) for file in sorted(new.iterdir())]
    assert not (old / "runs/.build.json").exists()
    succeeded(served.run("extend", old, new, "--workers", 1))
    assert verify(open_storage(str(old)), deep=True).findings == ()
    assert verify(open_storage(str(old)), generation=parent[:12]).findings == ()
    shown = shardmill("inspect", old, "--generation", parent[:12], "--json")
    assert len(json.loads(shown.stdout)["parts"]) == parts
    assert re.search(f"generation 0 +{parent}: ", shardmill("inspect", old).stdout)
    refused(
        shardmill("inspect", old, "--generation", "00000f"),
        "no generation has a hash that begins with '00000f'. There are",
    )
