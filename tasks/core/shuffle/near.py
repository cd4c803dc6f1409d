"""Near copies: sketches are compared, one range of the keys of their bands after another.

This needs no graph. The first document of a band is its leader, and documents that are similar
enough are paired with it. The others get the next leader, and so on. A document is left out if it
is paired with an earlier document that stays; the first of these is its witness.

    A, B and C have a band in common; B is similar to A and C, but A and C are not similar.
    The only pair is B with A. B is left out; C stays, so copies do not form chains.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from streaming_ext.base.arrays import Flags, Ints, ceil_div
from streaming_ext.format.duplicates import KeptSketches, codes, fixed_bytes
from streaming_ext.format.shuffled import key_range
from streaming_ext.format.spec import NearRule
from streaming_ext.store import LocalStorage, Storage
from streaming_ext.store.scratch import new_folder
from streaming_ext.text.sketches import Sketches, num_matches, sketches_of
from tasks.core.reading.documents import PartOfDataset
from tasks.core.shuffle.sort import (
    MOST_DIGEST_BYTES,
    SortedSpills,
    sketches_schema,
    spill_sketches,
    without_bos,
)
from tasks.core.shuffle.spills import SpillIndex, digests_path

MOST_LEADERS: Final = 32  # per band; changes the bytes of the dataset
RANGE_BYTES: Final = 2**27  # of sketches that are compared at a time; does not change the dataset
_AT_ONCE: Final = 2**12  # documents, to fit in the cache of a core


@dataclass(frozen=True, slots=True)
class NearCopies:
    """The near copies that are left out, each with its witness: (copies,).

    Attributes:
        documents: the `codes` of the copies, ascending.
        witnesses: the `codes` of documents that stay.
        matches: the number of bins in which both sketches agree.
    """

    documents: Ints
    witnesses: Ints
    matches: Ints

    @classmethod
    def found(
        cls, storage: Storage, index: SpillIndex, older: Iterator[KeptSketches], rule: NearRule
    ) -> Self:
        """Find all near copies; memory grows with the number of similar pairs, not of documents.

        Args:
            storage: the storage that holds the spills of sketches.
            index: the index of these spills.
            older: the sketches of documents that stay, and come before all others.
            rule: the rule for near copies.

        Raises:
            StorageError: a spill cannot be read.
            CorruptDatasetError: a spill is damaged.
        """
        schema, pairs = sketches_schema(rule), _Pairs()
        with new_folder() as folder:
            scratch, known = LocalStorage(folder), sorted_sketches(folder, older, rule)
            rows = int(index.counts.sum()) + int(known.counts.sum())
            ranges = max(1, ceil_div(rows * rule.bins, RANGE_BYTES))
            for number in range(ranges):
                keys = key_range(number, ranges)
                first = known.read(scratch, *keys, schema)
                own = index.read(storage, *keys, schema)
                for found in _similar(pa.concat_batches([first, own]), first.num_rows, rule):
                    pairs.add(found)
        return cls(*pairs.resolved())


def sketched_documents(
    part: PartOfDataset, listed: pa.Table, wanted: Flags, rule: NearRule
) -> Iterator[tuple[Ints, Sketches]]:
    """Yield the positions of the wanted documents in the list of a part, and their sketches.

    Args:
        part: the part.
        listed: the list of its documents; see `listed_documents`.
        wanted: the flags of the wanted documents, (documents,).
        rule: the rule for near copies.

    Raises:
        CorruptDatasetError, StorageError: see `PartOfDataset.documents`.
    """
    none = np.empty((0, rule.bins), np.uint8)
    yield np.empty(0, np.int64), none
    bos_id = part.record.spec.tokenizer.bos_id
    for at, block in part.blocks(listed):
        own, ends = wanted[at], block.ends - 1
        begins = without_bos(block.stream, block.ends - block.lengths, bos_id)
        found = sketches_of(block.stream, begins[own], ends[own], rule)
        yield at[own], np.concatenate([none, *found])


def sorted_sketches(folder: Path, batches: Iterable[KeptSketches], rule: NearRule) -> SpillIndex:
    """Write the sketches of documents to spills in a folder, and return their index."""
    spills = SortedSpills(
        folder, partial(digests_path, 0), sketches_schema(rule), most=MOST_DIGEST_BYTES
    )
    for batch in batches:
        shuffle_keys = np.zeros(len(batch.rows), np.uint64)
        names = batch.groups, batch.rows, shuffle_keys
        spill_sketches(spills, names, [batch.sketches], rule)
    return SpillIndex.of(spills.finish())


def _similar(batch: pa.RecordBatch, older: int, rule: NearRule) -> Iterator[Ints]:
    """Yield pairs: codes of a document and of an earlier one, and matching bins: (pairs, 3).

    Args:
        batch: all documents of a range of keys; see `sketches_schema`.
        older: the number of older documents, which come first and always stay.
        rule: the rule for near copies.
    """
    keys, groups, rows = (batch[name].to_numpy() for name in ("key", "group", "row"))
    named, sketches = codes(groups, rows), fixed_bytes(batch["sketch"])
    # left: documents by key, and with the same key in the order of the sources
    left = np.lexsort((named, keys))
    for _ in range(MOST_LEADERS):
        of_left = keys[left]
        begins = np.append(True, of_left[1:] != of_left[:-1])[: len(left)]
        ends = np.append(begins[1:], True)[: len(left)]
        left, begins = left[~(begins & ends)], begins[~(begins & ends)]  # none is alone
        if not len(left):
            return
        leaders = left[begins][np.cumsum(begins) - 1]
        left, leaders = left[~begins], leaders[~begins]
        matches = np.empty(len(left), np.int64)
        for first in range(0, len(left), _AT_ONCE):
            own = slice(first, first + _AT_ONCE)
            matches[own] = num_matches(sketches[left[own]], sketches[leaders[own]])
        is_similar = matches >= rule.least_matches
        new = is_similar & (left >= older)
        yield np.stack([named[left[new]], named[leaders[new]], matches[new]], axis=1)
        left = left[~is_similar]


class _Pairs:
    """Pairs of similar documents, each once."""

    def __init__(self) -> None:
        self._pairs = np.empty((0, 3), np.int64)
        self._added: list[Ints] = []
        self._count = 0

    def add(self, pairs: Ints) -> None:
        """Append pairs, (pairs, 3)."""
        self._added.append(pairs)
        self._count += len(pairs)
        if self._count > max(len(self._pairs), 2**20):
            self._join()

    def _join(self) -> None:
        pairs = np.concatenate([self._pairs, *self._added])
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
        is_new = np.append(True, (pairs[1:, :2] != pairs[:-1, :2]).any(axis=1))[: len(pairs)]
        self._pairs, self._added, self._count = pairs[is_new], [], 0

    def resolved(self) -> tuple[Ints, Ints, Ints]:
        """Return the documents that are left out, their witnesses, and how many bins match."""
        self._join()
        pairs = self._pairs
        documents, of_pairs = np.unique(pairs[:, 0], return_inverse=True)
        at = np.minimum(np.searchsorted(documents, pairs[:, 1]), max(len(documents) - 1, 0))
        # A document that is not the later one in any pair stays.
        is_clear = documents[at] != pairs[:, 1]
        stays, goes = (np.zeros(len(documents), np.bool_) for _ in range(2))
        left = np.arange(len(pairs))
        while len(left):  # each round decides at least the first document
            own, earlier = of_pairs[left], at[left]
            earlier_stays = is_clear[left] | stays[earlier]
            is_open = ~earlier_stays & ~goes[earlier]
            goes[own[earlier_stays]] = True
            waits = np.zeros(len(documents), np.bool_)
            waits[own[is_open]] = True
            waits &= ~goes
            stays[own[~waits[own] & ~goes[own]]] = True
            left = left[waits[own]]
        with_witness = pairs[goes[of_pairs] & (is_clear | stays[at])]
        _, firsts = np.unique(with_witness[:, 0], return_index=True)
        chosen: Any = with_witness[firsts].T
        return chosen[0], chosen[1], chosen[2]
