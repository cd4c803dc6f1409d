"""Between the stages: the hashes of all documents compared, one range of them after another.

Of documents with one hash the first in the order of the sources stays, the others are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.shuffled.keys import KEY_BITS, Ints, Keys, key_range
from tasks.core.deduplicate.digest_runs import ENTRY_BYTES
from tasks.core.deduplicate.drops import Drops, drops_bytes, drops_path
from tasks.core.shuffle.run_blocks import bytes_of_ranges, sound_blocks
from tasks.core.shuffle.run_index import RunIndex
from tasks.core.shuffle.run_record import digests_path
from tasks.core.storage import Storage

STEP_BYTES = 128 * 2**20  # of hashes that are compared at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Documents by hash, those of one hash in the order of the sources; all arrays: (documents,).

    Attributes:
        parts, rows: of each.
        keys: that the shuffle gives it.
        firsts: place here of the first document of the same hash.
    """

    parts: Ints
    rows: Ints
    keys: Keys
    firsts: Ints

    @property
    def copies(self) -> Ints:
        """Which of them are copies of earlier ones."""
        return np.flatnonzero(self.firsts != np.arange(len(self.firsts)))


def compared(storage: Storage, index: RunIndex) -> Iterator[Compared]:
    """The documents of one range of hashes after another.

    Memory does not depend on how many documents there are, but for copies of one text.

    Args:
        storage: that holds the runs of hashes.
        index: of these.

    Raises:
        StorageError: a run cannot be read.
        CorruptDatasetError: a run is damaged.
    """
    for start, end in index.steps(0, 2**KEY_BITS, STEP_BYTES):
        yield _by_hash(*_read(storage, index, start, end))


def put_drops(
    storage: Storage, index: RunIndex, parts: int, *, shuffled: bool
) -> tuple[FileRecord, ...]:
    """Put the lists of what each part of the second stage leaves out; returns their records.

    Args:
        storage: that holds the runs of hashes, and gets the lists.
        index: of these runs.
        parts: of the second stage.
        shuffled: whether these are ranges of keys, and not the parts of the first stage.

    Raises:
        StorageError: a run cannot be read, or a list not be put.
        CorruptDatasetError: a run is damaged.
    """
    files = []
    for number, found in enumerate(compared(storage, index)):
        own = found.copies
        first = found.firsts[own]
        places = found.parts[own], found.rows[own], found.parts[first], found.rows[first]
        if shuffled:
            drops = Drops(found.keys[own], *index.origins(*places[:2]), *index.origins(*places[2:]))
            starts = np.array([key_range(part, parts)[0] for part in range(parts)], np.uint64)
            edges = np.append(np.searchsorted(drops.keys, starts), len(drops))
        else:
            drops = Drops(np.zeros(len(own), np.uint64), *places)
            edges = np.searchsorted(drops.groups, np.arange(parts + 1))
        data = drops_bytes(drops, edges)
        storage.put(drops_path(number), data)
        files.append(FileRecord.of(drops_path(number), data))
    return tuple(files)


def _read(
    storage: Storage, index: RunIndex, start: int, end: int
) -> tuple[Keys, Keys, Ints, Ints, Keys]:
    """Hash, part, row and key of all documents whose hashes begin with [start, end)."""
    ranges = [found for found in index.ranges(start, end) if found.counts.sum()]
    total = sum(int(found.counts.sum()) for found in ranges)
    high, low, keys = (np.empty(total, np.uint64) for _ in range(3))
    parts, rows = np.empty(total, np.int64), np.empty(total, np.int64)
    held = 0
    for found, data in bytes_of_ranges(storage, ranges, digests_path):
        for documents, block in sound_blocks(storage, found, data, digests_path):
            # columns: (4, documents of the block)
            columns = np.frombuffer(block, "<u8").reshape(ENTRY_BYTES // 8, documents)
            begin = int(np.searchsorted(columns[0], np.uint64(start)))
            after = int(np.searchsorted(columns[0], np.uint64(end - 1), side="right"))
            count = after - begin
            place = slice(held, held + count)
            high[place], low[place] = columns[0, begin:after], columns[1, begin:after]
            rows[place], keys[place] = columns[2, begin:after].view("<i8"), columns[3, begin:after]
            parts[place] = found.part
            held += count
    return high[:held], low[:held], parts[:held], rows[:held], keys[:held]


def _by_hash(high: Keys, low: Keys, parts: Ints, rows: Ints, keys: Keys) -> Compared:
    """Documents that stand, of one hash, in the order of the sources."""
    order = np.argsort(high, kind="stable")
    same = high[order][1:] == high[order][:-1]
    if (same & (low[order][1:] != low[order][:-1])).any():  # by half of the hash only
        order = np.lexsort((low, high))
        same = high[order][1:] == high[order][:-1]
        same &= low[order][1:] == low[order][:-1]
    begins = np.concatenate([np.ones(min(len(order), 1), np.bool_), ~same])
    places = np.arange(len(order))
    return Compared(
        parts=parts[order],
        rows=rows[order],
        keys=keys[order],
        firsts=np.maximum.accumulate(np.where(begins, places, 0)),
    )
