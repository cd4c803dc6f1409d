"""The choice of documents for a subset: the candidates with the smallest keys.

Documents are numbered over all parts in order. The key of a document is its number or, with a seed,
a one-to-one hash of the number. So no two documents have the same key, the choice is exact, and the
largest chosen key tells each part which of its documents are chosen:

    keys 7 2 9 | 4 1, three documents: the largest chosen key is 4; chosen are the second | both
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.format.shuffled import Keys, document_keys

_BITS = 16  # leading bits of keys, by which keys are counted before any is in memory


class Choice(NamedTuple):
    """The chosen documents.

    Attributes:
        documents: the number of chosen documents.
        largest: the largest chosen key.
        candidates: the weight of all candidates.
    """

    documents: int
    largest: int
    candidates: int


def keys_of(numbers: Ints, seed: int | None) -> Keys:
    """Return the key of each document, (documents,); without a seed, that is its number."""
    if seed is None:
        return numbers.astype(np.uint64)
    return document_keys(seed, np.zeros_like(numbers), numbers)


def choose(
    weights: Callable[[], Iterable[Ints]], total: int, most: int, seed: int | None
) -> Choice:
    """Choose documents in the order of their keys until their weight would exceed a limit.

    Args:
        weights: a function that yields the weights of all documents in order, a block at a time;
            it may be called twice. A document of weight 0 is not a candidate.
        total: the number of documents.
        most: the limit of the total weight.
        seed: the seed of the keys.
    """
    # Keys are counted by their leading bits. Then only the documents of the first bucket that
    # exceeds the limit are compared one by one.
    sums, counts = np.zeros((2, 2**_BITS), np.int64)
    width = max(total.bit_length(), _BITS) if seed is None else 64
    shift = np.uint64(width - _BITS)
    for keys, block in _keyed(weights(), seed):
        buckets = (keys >> shift).astype(np.int64)
        counts += np.bincount(buckets, minlength=2**_BITS)
        np.add.at(sums, buckets, block)
    ends = np.cumsum(sums)
    weight, bucket = int(ends[-1]), int(np.searchsorted(ends, most, side="right"))
    before = int(ends[bucket - 1]) if bucket else 0
    documents = int(counts[:bucket].sum())
    if weight <= most:
        return Choice(documents, 2**64 - 1, weight)
    inside = [
        (keys[chosen], block[chosen])
        for keys, block in _keyed(weights(), seed)
        if (chosen := keys >> shift == bucket).any()
    ]
    keys, block = (np.concatenate(each) for each in zip(*inside, strict=True))
    order = np.argsort(keys)
    more = int(np.searchsorted(np.cumsum(block[order]), most - before, side="right"))
    largest = int(keys[order][more - 1]) if more else (bucket << int(shift)) - 1
    return Choice(documents + more, largest, weight)


def chosen(first: int, count: int, largest: int, seed: int | None) -> Flags:
    """Flag the chosen documents among `count` consecutive ones, (count,)."""
    return keys_of(np.arange(first, first + count), seed) <= np.uint64(largest)


def _keyed(weights: Iterable[Ints], seed: int | None) -> Iterator[tuple[Keys, Ints]]:
    first = 0
    for block in weights:
        candidates = np.flatnonzero(block)
        yield keys_of(first + candidates, seed), block[candidates]
        first += len(block)
