"""Between the stages: the hashes of all documents compared, one range of them after another.

Of documents with one hash the first in the order of the sources stays, the others are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.deduplicated.digests import (
    Digests,
    digests_bytes,
    kept_digests_path,
)
from streaming_ext.dataset.manifest import KeptDigests
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.shuffled.keys import KEY_BITS, Ints, Keys, ascending, key_range
from tasks.core.deduplicate.digest_runs import ENTRY_BYTES
from tasks.core.deduplicate.drops import Drops, drops_bytes, drops_path
from tasks.core.deduplicate.older import OlderTexts
from tasks.core.shuffle.run_blocks import blocks_of, read_in_turn
from tasks.core.shuffle.run_index import RunIndex
from tasks.core.shuffle.run_record import digests_path
from tasks.core.storage import Storage

STEP_BYTES = 128 * 2**20  # of hashes that are compared at a time
RANGE_BYTES = 64 * 2**20  # of those whose documents' hashes are kept in one file; decides its bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Documents by hash, those of one hash in the order of the sources; all arrays: (documents,).

    Attributes:
        high, low: halves of the hash.
        parts, rows: of each; of one of an older generation as that generation names it.
        keys: that the shuffle gives it, or what else was noted of it.
        firsts: place here of the first document of the same hash.
        older: whether it is of an older generation.
    """

    high: Keys
    low: Keys
    parts: Ints
    rows: Ints
    keys: Keys
    firsts: Ints
    older: npt.NDArray[np.bool_]

    @property
    def copies(self) -> Ints:
        """Which of them are copies of earlier ones."""
        return np.flatnonzero(~self.older & (self.firsts != np.arange(len(self.firsts))))

    @property
    def kept(self) -> Digests:
        """Those that stay, but for those of older generations, which stay anyway."""
        chosen = ~self.older & (self.firsts == np.arange(len(self.firsts)))
        whole = Digests(high=self.high, low=self.low, groups=self.parts, rows=self.rows)
        return whole.chosen(chosen)


def compared(
    storage: Storage,
    index: RunIndex,
    older: OlderTexts | None = None,
    *,
    start: int = 0,
    end: int = 2**KEY_BITS,
) -> Iterator[Compared]:
    """The documents of one range of hashes after another.

    Memory does not depend on how many documents there are, but for copies of one text.

    Args:
        storage: that holds the runs of hashes.
        index: of these.
        older: what is there already, where a dataset is extended; documents of it stand before all
            others, and only those of texts that come again.
        start, end: the hashes [start, end) alone.

    Raises:
        StorageError: a run cannot be read.
        CorruptDatasetError: a run is damaged.
    """
    for begin, after in index.steps(start, end, STEP_BYTES):
        own, keys = entries_of(storage, index, begin, after)
        known = Digests.joined([])
        if older is not None:
            known = older.among(np.sort(own.high), begin, after)
        count = len(known.high)
        yield _by_hash(
            Digests.joined([known, own]),
            np.concatenate([np.zeros(count, np.uint64), keys]),
            np.arange(count + len(keys)) < count,
        )


def put_comparison(
    storage: Storage,
    index: RunIndex,
    parts: int,
    *,
    shuffled: bool,
    older: OlderTexts | None = None,
    first_part: int = 0,
) -> tuple[tuple[FileRecord, ...], KeptDigests]:
    """Put the lists of what each part of the second stage leaves out, and hashes of what stays.

    Args:
        storage: that holds the runs of hashes, and gets the lists.
        index: of these runs.
        parts: of the second stage.
        shuffled: whether these are ranges of keys, and not the parts of the first stage.
        older: what is there already, where a dataset is extended.
        first_part: number of the first of the parts.

    Returns:
        Records of the lists; the hashes.

    Raises:
        StorageError: a run cannot be read, or a list not be put.
        CorruptDatasetError: a run is damaged.
    """
    numbers = np.arange(first_part, first_part + parts + 1)
    starts = np.array([key_range(part, parts)[0] for part in range(parts)], np.uint64)
    files: list[FileRecord] = []
    kept_files: list[FileRecord] = []
    documents = 0
    for number, (begin, end) in enumerate(index.steps(0, 2**KEY_BITS, RANGE_BYTES)):
        kept: list[Digests] = []
        for found in compared(storage, index, older, start=begin, end=end):
            unkeyed = replace(found, keys=np.zeros_like(found.keys))  # what was noted is no key
            named = _named(found, index) if shuffled else unkeyed
            drops = _left_out(named)
            if shuffled:
                edges = np.append(np.searchsorted(drops.keys, starts), len(drops))
            else:
                edges = np.searchsorted(drops.groups, numbers)
            data = drops_bytes(drops, edges)
            files.append(FileRecord.of(drops_path(len(files)), data))
            storage.put(files[-1].path, data)
            kept.append(named.kept)
        whole = Digests.joined(kept)
        documents += len(whole.high)
        data = digests_bytes(whole, shuffled=shuffled)
        kept_files.append(FileRecord.of(kept_digests_path(first_part, number), data))
        storage.put(kept_files[-1].path, data)
    return tuple(files), KeptDigests(documents=documents, files=tuple(kept_files))


def _named(found: Compared, index: RunIndex) -> Compared:
    """The same by source and row there; those of older generations are named so already."""
    new = ~found.older
    groups, rows = found.parts.copy(), found.rows.copy()
    groups[new], rows[new] = index.origins(groups[new], rows[new])
    return replace(found, parts=groups, rows=rows)


def _left_out(found: Compared) -> Drops:
    """The copies among some documents."""
    own = found.copies
    first = found.firsts[own]
    return Drops(
        found.keys[own], found.parts[own], found.rows[own], found.parts[first], found.rows[first]
    )


def entries_of(storage: Storage, index: RunIndex, start: int, end: int) -> tuple[Digests, Keys]:
    """All documents, by part, whose hashes begin with [start, end), and what is noted of each.

    Raises:
        StorageError: a run cannot be read.
        CorruptDatasetError: a run is damaged.
    """
    ranges = [found for found in index.ranges(start, end) if found.counts.sum()]
    total = sum(int(found.counts.sum()) for found in ranges)
    high, low, keys = (np.empty(total, np.uint64) for _ in range(3))
    parts, rows = np.empty(total, np.int64), np.empty(total, np.int64)
    held = 0
    for found, data in read_in_turn(storage, ranges, digests_path):
        for documents, block in blocks_of(found, data):
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
    own = Digests(high=high[:held], low=low[:held], groups=parts[:held], rows=rows[:held])
    return own, keys[:held]


def _by_hash(digests: Digests, keys: Keys, older: npt.NDArray[np.bool_]) -> Compared:
    """Documents that stand, of one hash, in the order of the sources."""
    high, low = digests.high, digests.low
    order = ascending(high)
    same = high[order][1:] == high[order][:-1]
    if (same & (low[order][1:] != low[order][:-1])).any():  # by half of the hash only
        order = np.lexsort((low, high))
        same = high[order][1:] == high[order][:-1]
        same &= low[order][1:] == low[order][:-1]
    begins = np.concatenate([np.ones(min(len(order), 1), np.bool_), ~same])
    places = np.arange(len(order))
    return Compared(
        high=high[order],
        low=low[order],
        parts=digests.groups[order],
        rows=digests.rows[order],
        keys=keys[order],
        firsts=np.maximum.accumulate(np.where(begins, places, 0)),
        older=older[order],
    )
