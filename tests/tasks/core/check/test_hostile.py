"""`verify` on values that no run writes: it names the file and stays small."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import copy as copy_object
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstd

from streaming_ext.format.schema import FileRecord, content_hash, to_json
from streaming_ext.format.shard import Shard
from tests.tasks.core.build_dataset import Forger
from tests.tasks.core.check.damage import (
    DOCUMENTS,
    RECORD,
    with_record,
)


def unchecked(shard: Shard, **update: Any) -> Shard:
    """A shard that says what no shard may say."""
    changed = copy_object(shard)
    for name, value in update.items():
        object.__setattr__(changed, name, value)
    return changed


def hostile_shard(**update: Any) -> Callable[[Forger], None]:
    def change(forger: Forger) -> None:
        held = forger.records[1].splits["train"]
        shard = unchecked(held.shards[0], **update)
        forger.set_split(1, "train", held.model_copy(update={"shards": (shard, *held.shards[1:])}))

    return change


@pytest.mark.parametrize(
    "change",
    [
        hostile_shard(samples=2**62),
        hostile_shard(raw_bytes=-5),
        hostile_shard(zip_name=None),
        hostile_shard(zip_bytes=None),
        hostile_shard(zip_hash="x"),
        hostile_shard(raw_name="00001/shard.00007.mds"),
        lambda forger: forger.change(1, rows=2**62, null_documents=2**62),
        lambda forger: forger.change(1, rows=-1),
    ],
)
def test_hostile_values_of_a_record(change: Callable[[Forger], None], copy: Path) -> None:
    forger = Forger(copy)
    change(forger)
    named = with_record(copy, to_json(forger.records[1]))
    assert named & {RECORD, forger.shard_path(1, "train")}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"documents/00001.parquet"', '"documents/00000.parquet"'),
        ('"documents/00001.parquet"', '"/etc/passwd"'),
        ("00001/shard.00000.mds.zstd", "../00001/shard.00000.mds.zstd"),
        ("00001/shard.00000.mds.zstd", "00000/shard.00000.mds.zstd"),
        ('"rows": ', '"rows": ' + "9" * 5000),
        ("{", "{" + '"a":[' * 100_000),
    ],
)
def test_hostile_text_of_a_record(old: str, new: str, copy: Path) -> None:
    text = (copy / RECORD).read_text()
    assert old in text
    assert RECORD in with_record(copy, text.replace(old, new, 1).encode())


# Not getrusage: a child's ru_maxrss begins at its parent's.
_MEASURED = """
import re, sys
from pathlib import Path
from streaming_ext.store import LocalStorage
from tasks.core.check.verify import verify

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

before = peak()
for root in sys.argv[1:]:
    report = verify(LocalStorage(Path(root)), workers=1)
    print(*sorted({finding.file for finding in report.findings}))
print((peak() - before) // 1024)
"""


def bomb(copy: Path) -> str:
    """2 GB of zeros where a shard should be, in some 60 KB."""
    forger = Forger(copy)
    packed = zstd.compress(bytes(2**31 - 1), 1, 1)
    shard = forger.shard_path(1, "train")
    (copy / shard).write_bytes(packed)
    update = {"zip_bytes": len(packed), "zip_hash": content_hash(packed)}
    hostile_shard(**update)(forger)
    forger.seal()
    return shard


def sparse_shard(copy: Path) -> str:
    """A shard that is as long as its record says: 8 GB."""
    forger = Forger(copy)
    shard = forger.shard_path(1, "train")
    with (copy / shard).open("r+b") as file:
        file.truncate(2**33)
    hostile_shard(zip_bytes=2**33)(forger)
    forger.seal()
    return shard


def many_rows(copy: Path) -> str:
    """Twenty million documents in a small file; the record knows of a few."""
    forger, rows = Forger(copy), 5 * 10**6
    kinds = {"row": pa.int64(), "split": pa.string(), "tokens": pa.uint32()}
    with pq.ParquetWriter(
        copy / DOCUMENTS,
        pa.schema(kinds),
        compression="zstd",
        use_dictionary=["split", "tokens"],
        column_encoding={"row": "DELTA_BINARY_PACKED"},
    ) as writer:
        for number in range(4):
            columns = {"row": np.arange(rows) + number * rows, "split": pa.repeat("train", rows)}
            table = pa.table({**columns, "tokens": pa.repeat(pa.scalar(1, pa.uint32()), rows)})
            writer.write_table(table)
    listed = FileRecord.of(DOCUMENTS, (copy / DOCUMENTS).read_bytes())
    forger.change(1, documents=listed)
    forger.seal()
    return DOCUMENTS


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_is_bounded(sound: Path, tmp_path: Path) -> None:
    roots, expected = [], []
    for make in (bomb, sparse_shard, many_rows):
        roots.append(shutil.copytree(sound, tmp_path / make.__name__))
        expected.append(make(roots[-1]))
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *map(str, roots)],
        check=True,
        capture_output=True,
        text=True,
    )
    *named, megabytes = done.stdout.splitlines()
    for file, files in zip(expected, named, strict=True):
        assert file in files.split()
    assert int(megabytes) < 200
