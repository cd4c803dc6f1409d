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

from streaming_ext.format.schema import content_hash, to_json
from streaming_ext.format.shard import Shard
from tests.tasks.core.build_dataset import Forger
from tests.tasks.core.check.damage import (
    DOCUMENTS,
    RECORD,
    check,
    files_named,
    fix_hash_in_manifest,
    forged,
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
        hostile_shard(samples=0),
        hostile_shard(raw_bytes=2**62),
        hostile_shard(raw_bytes=-5),
        hostile_shard(zip_name=None),
        hostile_shard(zip_bytes=-5),
        hostile_shard(zip_bytes=None),
        hostile_shard(zip_hash="x"),
        hostile_shard(raw_hash="x"),
        hostile_shard(raw_name="00001/shard.00007.mds"),
        lambda forger: forger.change(1, rows=2**62, null_documents=2**62),
        lambda forger: forger.change(1, rows=-1),
    ],
)
def test_hostile_values_of_a_record(change: Callable[[Forger], None], copy: Path) -> None:
    forger = Forger(copy)
    change(forger)
    (copy / RECORD).write_bytes(to_json(forger.records[1]))
    fix_hash_in_manifest(copy, forger)
    named = files_named(check(copy))
    assert RECORD in named or Forger(copy).shard_path(1, "train") in named


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"documents/00001.parquet"', '"../documents/00001.parquet"'),
        ('"documents/00001.parquet"', '"documents/00000.parquet"'),
        ('"documents/00001.parquet"', '"/etc/passwd"'),
        ("00001/shard.00000.mds.zstd", "../00001/shard.00000.mds.zstd"),
        ("00001/shard.00000.mds.zstd", "00000/shard.00000.mds.zstd"),
        ('"rows": ', '"rows": ' + "9" * 5000),
        ("{", "{" + '"a":[' * 100_000),
    ],
)
def test_hostile_text_of_a_record(old: str, new: str, copy: Path) -> None:
    forger, text = Forger(copy), (copy / RECORD).read_text()
    assert old in text
    (copy / RECORD).write_text(text.replace(old, new, 1))
    fix_hash_in_manifest(copy, forger)
    assert RECORD in files_named(check(copy))


def test_a_shard_of_fewer_samples_than_said(copy: Path) -> None:
    def change(forger: Forger) -> None:
        held, form = forger.records[1].splits["train"], forger.spec.shard_format
        samples = held.shards[0].samples
        raw = form.header(samples - 1) + bytes((samples - 1) * form.sample_bytes)
        shard = forger.put_shard(1, "train", 0, samples, raw)
        shard = shard.model_copy(update={"raw_bytes": form.raw_size(samples)})
        forger.set_split(1, "train", held.model_copy(update={"shards": (shard, *held.shards[1:])}))

    assert Forger(copy).shard_path(1, "train") in forged(copy, change)


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
    forger = Forger(copy)
    count = 2 * 10**7
    with pq.ParquetWriter(
        copy / DOCUMENTS,
        pa.schema([("row", pa.int64()), ("split", pa.string()), ("tokens", pa.uint32())]),
        compression="zstd",
        use_dictionary=["split", "tokens"],
        column_encoding={"row": "DELTA_BINARY_PACKED"},
    ) as writer:
        for first in range(0, count, 5 * 10**6):
            rows = np.arange(first, first + 5 * 10**6)
            columns = [rows, pa.DictionaryArray.from_arrays(np.zeros(5 * 10**6, np.int8), ["train"])
                       .cast(pa.string()), np.ones(5 * 10**6, np.uint32)]  # fmt: skip
            writer.write_table(pa.table(columns, schema=writer.schema))
    file = forger.records[1].documents
    data = (copy / DOCUMENTS).read_bytes()
    changed = file.model_copy(update={"size": len(data), "xxh128": content_hash(data)})
    forger.change(1, documents=changed)
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
