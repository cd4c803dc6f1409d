"""Which documents a subset holds: those of the smallest keys.

Documents are numbered over all parts in their order. The key of a number is the number itself, or
with a seed a hash of it that is one to one. So the choice is exact, no two documents have one key,
and each part tells its own by the largest key that is taken:

    keys 7 2 9 | 4 1, three documents: the largest is 4, taken are the second | both
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streaming_ext.format.shuffled import document_keys

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
_AT_ONCE = 2**20
_BITS = 16  # of a key, by which keys are counted before any is held


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What is chosen.

    Attributes:
        documents: how many.
        largest: key that is taken.
    """

    documents: int
    largest: int


def keys_of(numbers: Ints, seed: int | None) -> Keys:
    """The key of each document: (documents,); without a seed, documents in their order."""
    if seed is None:
        return numbers.astype(np.uint64)
    return document_keys(seed, np.zeros_like(numbers), numbers)


def choose_documents(total: int, count: int, seed: int | None) -> Choice:
    """The choice of so many documents of `total`; `count` is at most that, and at least one."""
    if seed is None:
        return Choice(documents=count, largest=count - 1)
    ones = ((keys, np.ones(len(keys), np.int64)) for keys in _all_keys(total, seed))
    bucket, before, _ = _bucket(ones, count - 1)
    inside = np.concatenate([keys[_bucket_of(keys) == bucket] for keys in _all_keys(total, seed)])
    return Choice(documents=count, largest=int(np.sort(inside)[count - before - 1]))


def choose_tokens(lengths: Iterable[Ints], tokens: int, seed: int | None) -> Choice | None:
    """The choice of as many documents as have at most so many tokens, in the order of their keys.

    Args:
        lengths: of all documents, with their end-of-text ids, in runs; iterated twice.
        tokens: at most so many.
        seed: of the keys.

    Returns:
        None where the first document has more.
    """
    if seed is None:
        return _first_tokens(lengths, tokens)
    bucket, before, documents = _bucket(_keyed(lengths, seed), tokens)
    found = [
        (keys[inside], sizes[inside])
        for keys, sizes in _keyed(lengths, seed)
        if (inside := _bucket_of(keys) == bucket).any()
    ]
    if not found:  # all of them are taken
        return Choice(documents=documents, largest=2**64 - 1)
    keys, sizes = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.argsort(keys)
    taken = int(np.searchsorted(np.cumsum(sizes[order]), tokens - before, side="right"))
    if taken:
        return Choice(documents=documents + taken, largest=int(keys[order][taken - 1]))
    if not documents:
        return None
    return Choice(documents=documents, largest=(int(bucket) << (64 - _BITS)) - 1)


def chosen(first: int, count: int, choice: Choice, seed: int | None) -> npt.NDArray[np.bool_]:
    """Which of some consecutive documents are taken: (count,)."""
    return keys_of(np.arange(first, first + count), seed) <= np.uint64(choice.largest)


def _all_keys(total: int, seed: int) -> Iterator[Keys]:
    for first in range(0, total, _AT_ONCE):
        yield keys_of(np.arange(first, min(first + _AT_ONCE, total)), seed)


def _bucket_of(keys: Keys) -> Ints:
    """The leading bits of each key."""
    return (keys >> np.uint64(64 - _BITS)).astype(np.int64)


def _bucket(weighed: Iterable[tuple[Keys, Ints]], most: int) -> tuple[int, int, int]:
    """The first run of keys that cannot be taken whole; the weight and documents before it."""
    weights, counts = np.zeros(2**_BITS, np.int64), np.zeros(2**_BITS, np.int64)
    for keys, sizes in weighed:
        buckets = _bucket_of(keys)
        counts += np.bincount(buckets, minlength=2**_BITS)
        np.add.at(weights, buckets, sizes)
    sums = np.cumsum(weights)
    bucket = int(np.searchsorted(sums, most, side="right"))
    before = 0 if bucket == 0 else int(sums[bucket - 1])
    return bucket, before, int(counts[:bucket].sum())


def _keyed(lengths: Iterable[Ints], seed: int) -> Iterator[tuple[Keys, Ints]]:
    first = 0
    for sizes in lengths:
        yield keys_of(np.arange(first, first + len(sizes)), seed), sizes
        first += len(sizes)


def _first_tokens(lengths: Iterable[Ints], tokens: int) -> Choice | None:
    documents = held = 0
    for sizes in lengths:
        sums = held + np.cumsum(sizes)
        taken = int(np.searchsorted(sums, tokens, side="right"))
        documents += taken
        if taken < len(sizes):
            break
        held = int(sums[-1]) if len(sums) else held
    return Choice(documents=documents, largest=documents - 1) if documents else None
