"""The choice of the documents of a subset: those of the smallest keys, of all or of candidates.

Documents are numbered over all parts in order. The key of a document is its number, or with a seed
a hash of the number that is one to one. So the choice is exact, no two documents have the same key,
and each part knows its own from the largest key that is chosen:

    keys 7 2 9 | 4 1, three documents: the largest is 4, chosen are the second | both
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.format.shuffled import Keys, document_keys

_BITS = 16  # of a key, by which keys are counted before any is held


class Choice(NamedTuple):
    """The chosen documents.

    Attributes:
        documents: number of chosen documents.
        largest: the largest chosen key.
        candidates: the weight of all candidates.
    """

    documents: int
    largest: int
    candidates: int


def keys_of(numbers: Ints, seed: int | None) -> Keys:
    """Return the key of each document, (documents,); without a seed its number."""
    if seed is None:
        return numbers.astype(np.uint64)
    return document_keys(seed, np.zeros_like(numbers), numbers)


def choose(
    weights: Callable[[], Iterable[Ints]], total: int, most: int, seed: int | None
) -> Choice:
    """Choose documents in the order of their keys, as many as weigh no more than a limit.

    Args:
        weights: gives the weights of all documents in order, a block at a time; called twice. A
            document without weight is no candidate.
        total: the number of documents.
        most: the limit of the weight.
        seed: the seed of the keys.
    """
    # Keys are counted by their leading bits: the first bucket that exceeds the limit is looked at
    # document by document.
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
    """Flags of the chosen ones among consecutive documents, (count,)."""
    return keys_of(np.arange(first, first + count), seed) <= np.uint64(largest)


def _keyed(weights: Iterable[Ints], seed: int | None) -> Iterator[tuple[Keys, Ints]]:
    first = 0
    for block in weights:
        candidates = np.flatnonzero(block)
        yield keys_of(first + candidates, seed), block[candidates]
        first += len(block)
