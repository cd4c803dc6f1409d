"""The order of a shuffled dataset: each document has a key; the order by key is the permutation.

The key is a keyed hash of what names the document: the number of its source among the sorted ones,
and its place there. Neither parts nor workers nor hosts decide it. Part b of P holds the b-th of P
equal ranges of keys, so the parts end to end are in the order of the keys:

    P = 4: part 1 holds the keys from 1/4 of 2^64 on, below 2/4
"""

from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import xxhash

ShuffleUnit = Literal["documents"]
Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

KEY_BITS: Final = 64
MAX_PART_BYTES: Final = 384 * 2**20  # of ids: what a worker merges at a time
_LEAST_PARTS: Final = 64  # while each fills a shard: enough for many workers
_SHIFT = np.uint64(33)
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


def document_keys(seed: int, sources: Ints, places: Ints) -> Keys:
    """The key of each document.

    Args:
        seed: of the permutation.
        sources: number of each document's source, int64 (documents,).
        places: its place there, int64 (documents,).
    """
    digest = xxhash.xxh3_128_intdigest(seed.to_bytes(8, "little"), seed=0x5348554646_4C45)
    low, high = np.uint64(digest & (2**KEY_BITS - 1)), np.uint64(digest >> KEY_BITS)
    of_source = _mixed(sources.astype(np.uint64) + low)
    return _mixed(_mixed(places.astype(np.uint64) ^ of_source) + high)


def _mixed(values: Keys) -> Keys:
    """Each value by a bijection that spreads every bit over all of them (MurmurHash3's)."""
    values = (values ^ (values >> _SHIFT)) * _FIRST
    values = (values ^ (values >> _SHIFT)) * _SECOND
    mixed: Keys = values ^ (values >> _SHIFT)
    return mixed


def ascending(keys: Keys) -> Ints:
    """The order of keys, equal ones as they stand: several times as fast where no two are equal."""
    order = np.argsort(keys)
    sorted_keys = keys[order]
    if (sorted_keys[1:] == sorted_keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
    return order


def num_parts(id_bytes: int, shard_size: int) -> int:
    """How many parts a shuffled dataset has: a function of what it holds and of its shards.

    Args:
        id_bytes: bytes of all ids, end-of-text ids counted.
        shard_size: upper bound of a shard, in bytes.
    """
    each = min(MAX_PART_BYTES, max(shard_size, -(-id_bytes // _LEAST_PARTS), 1))
    return max(1, -(-id_bytes // each))


def key_range(part: int, parts: int) -> tuple[int, int]:
    """The keys [start, end) of a part."""
    return (part << KEY_BITS) // parts, ((part + 1) << KEY_BITS) // parts
