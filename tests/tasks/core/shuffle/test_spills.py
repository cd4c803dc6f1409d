"""Spills: what they take on the disk, and that no damage of them passes."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from streaming_ext.base.errors import CorruptDatasetError, StorageError
from streaming_ext.format.shuffled import KEY_BITS, document_keys
from streaming_ext.store import LocalStorage
from tasks.core.estimate import cost
from tasks.core.shuffle.records import read_spill_record
from tasks.core.shuffle.sort import SortedSpills, documents_batch, documents_schema
from tasks.core.shuffle.spills import SpillIndex, spill_path
from tests.tasks.core.running import do_parts
from tests.tasks.core.shuffle.building import Builder


def test_what_a_document_takes(tmp_path: Path) -> None:
    """As the estimate of the room on the disk has it."""
    rows = np.arange(20_000)
    parts, ids = np.zeros_like(rows), np.zeros(2 * len(rows), "<u2")
    columns = document_keys(3, parts, rows), parts, rows, rows, parts + 1, rows + 9, rows % 5 == 0
    batch = documents_batch(ids, columns, parts > 0, {})
    writer = SortedSpills(tmp_path, partial(spill_path, 0), documents_schema([]))
    writer.add(batch)
    (spill,) = writer.finish()
    taken = (spill.file.size - ids.nbytes) / len(rows)
    assert taken == pytest.approx(cost.SPILL_BYTES, rel=0.05)


class Far(LocalStorage):
    """A store, as far as spills are read."""

    @property
    def remote(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [LocalStorage, Far])
def test_damage(builder: Builder, kind: type[LocalStorage]) -> None:
    """A byte of another value, a spill that is cut, and one that is gone."""
    plan, output = builder.begin()
    do_parts(plan, output, (0,))
    spills = read_spill_record(output, 0).spills
    index, storage = SpillIndex.of(spills), kind(output.root)
    file = output.root / spills[0].file.path
    data = file.read_bytes()

    def read() -> int:
        return len(index.read(storage, 0, 2**KEY_BITS, documents_schema([])))

    assert read() == 30
    for at in range(0, len(data), len(data) // 50):
        file.unlink()
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptDatasetError, match="00000-000.spill is damaged between"):
            read()
    file.write_bytes(data[:-1])
    with pytest.raises(StorageError, match=f"ends at byte {len(data) - 1}"):
        read()
    file.unlink()
    with pytest.raises(StorageError, match=r"00000-000\.spill is missing"):
        read()
