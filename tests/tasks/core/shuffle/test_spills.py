"""Documents of a range of keys, as spills hold them: every one once; no damage passes."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streaming_ext.base.errors import CorruptDatasetError, StorageError
from streaming_ext.format.shuffled import KEY_BITS, document_keys
from streaming_ext.store import LocalStorage
from tasks.core.estimate import cost
from tasks.core.shuffle.sort import SortedSpills, documents_batch, documents_schema
from tasks.core.shuffle.spills import Spill, SpillIndex, spill_path

DOCUMENTS, PARTS = 40, 3
SCHEMA = documents_schema(["name"])


class Far(LocalStorage):
    """A store, as far as spills are read."""

    @property
    def remote(self) -> bool:
        return True


def ids(part: int, row: int) -> list[int]:
    return [*[100 * part + row] * (row % 7 + 1), 999]


def batch(part: int, rows: Any) -> pa.RecordBatch:
    """Document d of part p: d % 7 + 1 times the id 100 p + d, an end-of-text id behind."""
    stream = np.concatenate([ids(part, row) for row in rows]).astype("<u2")
    parts = np.full(len(rows), part)
    keys = document_keys(3, parts, rows)
    columns = keys, parts, rows, rows, rows % 7 + 1, rows + 9, rows % 5 == 0
    names = pa.array([f"{part} {row}" for row in rows])
    return documents_batch(stream, columns, np.zeros(len(rows), np.bool_), {"name": names})


@pytest.fixture(params=["one spill a part", "several", "merged", "merged in steps"])
def index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> SpillIndex:
    monkeypatch.setattr("tasks.core.shuffle.spills.BLOCK_BYTES", 200)
    monkeypatch.setattr("tasks.core.shuffle.spills._TAKEN_BYTES", 500)
    if request.param == "merged in steps":
        monkeypatch.setattr("tasks.core.shuffle.sort.MERGED_BYTES", 2000)
    several = request.param != "one spill a part"
    spills: list[Spill] = []
    for part in range(PARTS):
        most = 1500 if several else None
        writer = SortedSpills(tmp_path, partial(spill_path, part), SCHEMA, most=most)
        for first in range(0, DOCUMENTS, 10):
            writer.add(batch(part, np.arange(first, first + 10)))
        own = writer.finish(as_one_spill=request.param.startswith("merged"))
        assert (len(own) > 1) is (request.param == "several")
        spills += own
    files = {str(file.relative_to(tmp_path)): file for file in tmp_path.rglob("*.spill")}
    assert {path: file.stat().st_size for path, file in files.items()} == {
        spill.file.path: spill.file.size for spill in spills
    }
    return SpillIndex.of(spills)


@pytest.mark.parametrize("ranges", [1, 7, 60])
@pytest.mark.parametrize("kind", [LocalStorage, Far])
def test_every_document_once(
    tmp_path: Path, index: SpillIndex, ranges: int, kind: type[LocalStorage]
) -> None:
    edges = [2**KEY_BITS * number // ranges for number in range(ranges + 1)]
    found = []
    for start, end in pairwise(edges):
        documents = index.read(kind(tmp_path), start, end, SCHEMA)
        assert all(start <= key < end for key in documents["key"].to_pylist())
        found.append(documents)
    rows = pa.Table.from_batches(found).to_pylist() if ranges == 1 else [
        row for documents in found for row in documents.to_pylist()
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["group"], row["row"]))
    numbers = np.arange(DOCUMENTS)
    expected = [row for part in range(PARTS) for row in batch(part, numbers).to_pylist()]
    assert rows == expected
    assert sum(index.size(start, end) for start, end in pairwise(edges)) == pytest.approx(
        index.size(0, 2**KEY_BITS), rel=0.1
    )


def test_what_a_document_takes(tmp_path: Path) -> None:
    """As the estimate of the room on the disk has it."""
    schema = documents_schema([])
    rows = np.arange(20_000)
    one = batch(0, rows).drop_columns(["column.name"])
    writer = SortedSpills(tmp_path, partial(spill_path, 0), schema)
    writer.add(one)
    (spill,) = writer.finish()
    taken = (spill.file.size - 2 * int((rows % 7 + 2).sum())) / len(rows)
    assert taken == pytest.approx(cost.SPILL_BYTES, rel=0.05)


@pytest.mark.parametrize("kind", [LocalStorage, Far])
def test_damage(tmp_path: Path, kind: type[LocalStorage]) -> None:
    """A byte of another value, a spill that is cut, and one that is gone."""
    writer = SortedSpills(tmp_path, partial(spill_path, 0), SCHEMA)
    writer.add(batch(0, np.arange(DOCUMENTS)))
    index = SpillIndex.of(writer.finish())
    file, storage = tmp_path / spill_path(0, 0), kind(tmp_path)
    data = file.read_bytes()

    def read() -> None:
        index.read(storage, 0, 2**KEY_BITS, SCHEMA)

    read()
    for at in range(0, len(data), 31):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptDatasetError, match="00000-000.spill is damaged between"):
            read()
    file.write_bytes(data[:-1])
    with pytest.raises(StorageError, match=f"ends at byte {len(data) - 1}"):
        read()
    file.unlink()
    with pytest.raises(StorageError, match=r"00000-000\.spill is missing"):
        read()
