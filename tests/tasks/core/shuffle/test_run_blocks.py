"""Blocks of runs are compared with their hashes however they lie in what is read at a time."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xxhash

from streaming_ext.errors import CorruptDatasetError, StorageError
from tasks.core.shuffle.run_blocks import blocks_of, read_in_turn, read_ranges, size_of
from tasks.core.shuffle.run_index import Range
from tasks.core.storage import LocalStorage, Storage

SIZES = [5, 0, 12, 1, 30, 7, 0]  # of the blocks of a run, in bytes
COUNTS = [1, 0, 2, 1, 3, 1, 0]  # documents of each


class Far(LocalStorage):
    """A store, as far as runs are read."""

    @property
    def remote(self) -> bool:
        return True


@pytest.fixture(params=[LocalStorage, Far])
def storage(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    """Two runs, read eight bytes at a time."""
    monkeypatch.setattr("tasks.core.storage.local._AT_ONCE", 8)
    for run in range(2):
        (tmp_path / path_of(0, run)).write_bytes(content(run))
    found: Storage = request.param(tmp_path)
    return found


def path_of(part: int, run: int) -> str:
    return f"{part}-{run}.run"


def content(run: int) -> bytes:
    return bytes(np.random.default_rng(run).integers(0, 256, sum(SIZES), np.uint8))


def range_of(run: int, first: int, last: int) -> Range:
    """The blocks [first, last) of a run."""
    offsets = np.cumsum([0, *SIZES])
    data = content(run)
    digests = [xxhash.xxh3_64_intdigest(data[begin:end]) for begin, end in pairwise(offsets)]
    return Range(
        part=0,
        run=run,
        offsets=offsets[first : last + 1],
        counts=np.array(COUNTS)[first:last],
        digests=np.array(digests, np.uint64)[first:last],
    )


RANGES = [range_of(0, 0, 7), range_of(1, 2, 5), range_of(0, 4, 6)]
EXPECTED = [content(0), content(1)[5:48], content(0)[18:55]]


def test_ranges_lie_one_behind_another(storage: Storage) -> None:
    memory = np.zeros(size_of(RANGES) + 3, np.uint8)
    rooms = read_ranges(storage, RANGES, path_of, memory)
    assert [bytes(room) for room in rooms] == EXPECTED
    assert memory.tobytes() == b"".join(EXPECTED) + b"\0\0\0"
    assert [(count, bytes(block)) for count, block in blocks_of(RANGES[1], rooms[1])] == [
        (2, EXPECTED[1][:12]), (1, EXPECTED[1][12:13]), (3, EXPECTED[1][13:]),
    ]  # fmt: skip


def test_ranges_one_after_another(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.core.shuffle.run_blocks._READS_AT_ONCE", 2)
    found = [(of, bytes(data)) for of, data in read_in_turn(storage, RANGES, path_of)]
    assert found == list(zip(RANGES, EXPECTED, strict=True))
    assert not list(read_in_turn(storage, [], path_of))


@pytest.mark.parametrize("at", range(sum(SIZES)))
def test_a_byte_of_another_value_is_found(tmp_path: Path, storage: Storage, at: int) -> None:
    damaged = bytearray(content(0))
    damaged[at] ^= 1
    (tmp_path / path_of(0, 0)).write_bytes(damaged)
    edges = np.cumsum([0, *SIZES])
    begin, end = int(edges[edges <= at][-1]), int(edges[edges > at][0])
    with pytest.raises(CorruptDatasetError, match=f"0-0.run is damaged between the bytes {begin} "
                       f"and {end}"):  # fmt: skip
        read_ranges(storage, RANGES[:1], path_of, np.empty(size_of(RANGES), np.uint8))


def test_a_run_that_is_gone_or_cut(tmp_path: Path, storage: Storage) -> None:
    memory = np.empty(size_of(RANGES), np.uint8)
    (tmp_path / path_of(0, 0)).write_bytes(content(0)[:-1])
    with pytest.raises(StorageError, match="ends at byte 54, where bytes up to 55 should be"):
        read_ranges(storage, RANGES[:1], path_of, memory)
    (tmp_path / path_of(0, 0)).unlink()
    with pytest.raises(StorageError, match=r"0-0\.run is gone"):
        read_ranges(storage, RANGES[:1], path_of, memory)
