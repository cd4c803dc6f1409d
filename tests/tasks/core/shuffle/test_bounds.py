"""The sizes of spills, blocks and steps change no byte, and no damage of spills goes unnoticed."""

from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import CorruptDatasetError, StorageError
from streaming_ext.base.memory import limit_memory
from streaming_ext.format.shuffled import KEY_BITS, document_keys
from streaming_ext.store import LocalStorage
from tasks.core.estimate import estimate
from tasks.core.shuffle.sort import SortedSpills, documents_batch, documents_schema
from tasks.core.shuffle.spills import SpillIndex, read_spill_record, spill_path
from tests.command_line import file_hashes
from tests.tasks.core.running import do_parts, publish, second_phase
from tests.tasks.core.shuffle.building import FILES


def test_lists_do_not_depend_on_how_much_is_merged_at_a_time(builder, monkeypatch) -> None:
    """Other parts make spills of other sizes, and so other steps."""
    monkeypatch.setattr("streaming_ext.writing.part_files._DOCUMENTS_A_ROW_GROUP", 8)
    settings = {"shard_size": 2**18, "keep_columns": ("text",)}
    wanted = file_hashes(builder.build("whole", **settings))
    (file,) = (builder.folder / "whole/documents").glob("0*.parquet")
    groups = pq.ParquetFile(file).metadata
    assert [groups.row_group(n).num_rows for n in range(groups.num_row_groups)] == [8] * 11 + [2]
    monkeypatch.setattr("tasks.core.workers.merge_part.MOST_STEP_BYTES", 20_000)
    for size in ("16KiB", "1MiB"):
        root = builder.build(size, part_size=size, **settings)
        assert file_hashes(root) == wanted


def test_in_little_memory(builder, whole, monkeypatch) -> None:
    """A worker with less memory than a full spill needs writes smaller spills; same bytes."""
    monkeypatch.setenv("SHARDMILL_WORKER_MEMORY", "360MiB")
    limit_memory()  # until the test ends: see `own_process`
    assert file_hashes(builder.build("little")) == whole


@pytest.fixture
def small_spills(monkeypatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("streaming_ext.text.readers.json_files.MAX_BATCH_ROWS", 5)
    monkeypatch.setattr("tasks.core.shuffle.sort.SPILL_BYTES", 9000)
    return monkeypatch


def test_small_spills(builder, whole, small_spills) -> None:
    small_spills.setattr("tasks.core.shuffle.spills.BLOCK_BYTES", 300)
    small_spills.setattr("tasks.core.shuffle.spills._TAKEN_BYTES", 1000)
    small_spills.setattr("tasks.core.workers.merge_part._TAKEN_BYTES", 600)
    small_spills.setattr("tasks.core.workers.merge_part.MOST_STEP_BYTES", 2000)
    plan, storage = builder.begin("many")
    do_parts(plan, storage)
    assert len(storage.list("shuffle")) > 3 * FILES
    assert file_hashes(builder.build("many")) == whole


class Counting(LocalStorage):
    """A store that counts as remote, and counts the reads of spills."""

    reads = 0

    @property
    def remote(self) -> bool:
        return True

    def read_range(self, path: str, start: int, end: int) -> bytes:
        self.reads += path.endswith(".spill")
        return super().read_range(path, start, end)


@pytest.mark.parametrize("merged_bytes", [2000, 2**26])
def test_one_request_to_a_store_for_each_part_of_each_phase(
    builder, whole, small_spills, merged_bytes
) -> None:
    small_spills.setattr("tasks.core.shuffle.sort.MERGED_BYTES", merged_bytes)
    plan, _ = builder.begin("many")
    storage = Counting(builder.folder / "many")
    do_parts(plan, storage)
    spills = [path for path in storage.list("shuffle") if path.endswith(".spill")]
    assert len(spills) == FILES
    second = second_phase(plan, storage)
    do_parts(second, storage)
    assert storage.reads == FILES * len(second.parts)  # one range of each spill for each part
    publish(second, storage)
    storage.close()
    assert file_hashes(builder.folder / "many") == whole


# --- spills: their size on disk, and their damage


def test_what_a_document_takes(tmp_path) -> None:
    """The estimate of the disk space counts as much."""
    rows = np.arange(20_000)
    parts, ids = np.zeros_like(rows), np.zeros(2 * len(rows), "<u2")
    columns = document_keys(3, parts, rows), parts, rows, rows, parts + 1, rows + 9, rows % 5 == 0
    batch = documents_batch(ids, columns, parts > 0, {})
    writer = SortedSpills(tmp_path, partial(spill_path, 0), documents_schema([]))
    writer.add(batch)
    (spill,) = writer.finish()
    taken = (spill.file.size - ids.nbytes) / len(rows)
    assert taken == pytest.approx(estimate.SPILL_BYTES, rel=0.05)


@pytest.mark.parametrize("kind", [LocalStorage, Counting])
def test_damage(builder, kind) -> None:
    """A byte has another value, a spill is cut, or a spill is missing."""
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
