"""Sketches of documents, which estimate how many n-grams of ids two documents have in common.

A sketch is a one-permutation MinHash (Li, Owen and Zhang, 2012): each n-gram has one hash, whose
upper bits choose a bin, and each bin keeps the smallest hash. An empty bin copies the first bin
that is not empty, counted from a fixed pseudo-random bin on, around the end. So the probability
that two documents agree in a bin is the Jaccard similarity of their sets of n-grams. One byte per
bin is kept. Different hashes agree in it once in 256 times; `NearRule.similarity_of` corrects this.

All arithmetic is on integers: the same ids have the same sketch on every machine.

    ids 7 8 9 7 8 9, n-grams of 5: 7 8 9 7 8 and 8 9 7 8 9; a document of fewer ids is one n-gram
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints, ranges
from streaming_ext.format.shuffled import KEY_BITS, Keys, key_range, mixed
from streaming_ext.format.spec import NearRule

Sketches = npt.NDArray[np.uint8]  # (documents, bins)

_DOCUMENTS: Final = 1024  # whose bins are filled at a time, to stay in the cache of a core
_NGRAMS: Final = 2**15  # that are hashed at a time, for the same reason
_EMPTY: Final = np.uint64(2**64 - 1)
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_BASE: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF, _BYTE, _ONE = np.uint64(32), np.uint64(56), np.uint64(1)


def sketches_of(
    stream: npt.NDArray[Any], begins: Ints, ends: Ints, rule: NearRule
) -> Iterator[Sketches]:
    """Yield the sketches of documents, some documents at a time.

    Args:
        stream: the ids of all documents, in their order: (tokens,).
        begins, ends: the bounds of each document in the stream, without the ids that begin or end
            it: (documents,).
        rule: the number of bins, and the length of n-grams.
    """
    bins = rule.bins
    for first in range(0, len(begins), _DOCUMENTS):
        own = slice(first, first + _DOCUMENTS)
        minima = np.full(len(begins[own]) * bins, _EMPTY)
        for documents, hashes in _ngrams(stream, begins[own], ends[own], rule.ngram):
            # The upper half of a hash, times the number of bins, has the bin in its upper half.
            chosen = ((hashes >> _HALF) * np.uint64(bins) >> _HALF).view(np.int64)
            chosen += documents * bins
            np.minimum.at(minima, chosen, hashes)
        yield _bytes(_filled(minima.reshape(-1, bins)))


def _ngrams(
    stream: npt.NDArray[Any], begins: Ints, ends: Ints, length: int
) -> Iterator[tuple[Ints, Keys]]:
    """Yield the hashes of n-grams, and the index of the document of each: (n-grams,)."""
    edges = np.append(0, np.cumsum(np.maximum(ends - begins - length + 1, 0)))
    for first in range(0, int(edges[-1]), _NGRAMS):
        taken = np.clip(edges, first, first + _NGRAMS)
        counts = np.diff(taken)
        at = ranges(begins + (taken[:-1] - edges[:-1]), counts)
        low = int(at[0])
        ids = _of_ids(stream[low : int(at[-1]) + length])
        hashes = ids[: len(ids) - length + 1].copy()
        for offset in range(1, length):
            hashes *= _BASE
            hashes += ids[offset : offset + len(hashes)]
        at -= low
        yield np.repeat(np.arange(len(counts)), counts), mixed(hashes[at], _HALF)
    if len(short := np.flatnonzero(ends - begins < length)):
        hashes = np.full(len(short), _SECOND)
        for offset in range(length - 1):
            is_long = ends[short] - begins[short] > offset
            ids = _of_ids(stream[begins[short[is_long]] + offset])
            hashes[is_long] = hashes[is_long] * _BASE + ids
        yield short, mixed(hashes, _HALF)


def _of_ids(ids: npt.NDArray[Any]) -> Keys:
    """Return a number for each id; no line relates the numbers of different ids."""
    values = (ids.astype(np.uint64) + _ONE) * _FIRST
    values ^= values >> _HALF
    return values


def _filled(minima: Keys) -> Keys:
    """Return the least hash of each bin, or of another if the bin is empty: (documents, bins)."""
    bins = minima.shape[1]
    is_empty = minima == _EMPTY
    some = np.flatnonzero(is_empty.any(axis=1))
    if not len(some):
        return minima
    # following: (documents, bins), the first bin from each on that is not empty, around the end
    last = 2 * bins
    numbers = np.where(np.tile(is_empty[some], 2), last, np.arange(last))
    following = np.minimum.accumulate(numbers[:, ::-1], axis=1)[:, ::-1][:, :bins] % bins
    starts = (mixed(np.arange(1, bins + 1, dtype=np.uint64), _HALF) % np.uint64(bins)).astype(
        np.int64
    )
    instead = np.take_along_axis(minima[some], following[:, starts], axis=1)
    minima[some] = np.where(is_empty[some], instead, minima[some])
    return minima


def _bytes(minima: Keys) -> Sketches:
    """Return a byte per bin; each bin scrambles it differently, since bins may share a hash."""
    minima ^= mixed(np.arange(1, minima.shape[1] + 1, dtype=np.uint64) * _BASE, _HALF)
    minima *= _SECOND
    minima >>= _BYTE
    return minima.astype(np.uint8)


def sketch_keys(sketches: Sketches, rule: NearRule) -> Keys:
    """Return keys of each sketch and of its bands: (1 + bands, documents).

    Keys of sketches are in the first of 1 + bands equal ranges of keys, keys of the first band in
    the second, and so on.
    """
    # bands: (documents, bands), then whole: (documents,)
    bands = _joined(sketches.reshape(-1, rule.bands, rule.rows))
    keys = np.concatenate([_joined(bands)[None], bands.T])
    ways = rule.bands + 1
    starts = np.array([key_range(band, ways)[0] for band in range(ways)], np.uint64)
    placed: Keys = starts[:, None] + keys % np.uint64(2**KEY_BITS // ways)
    return placed


def _joined(values: npt.NDArray[Any]) -> Keys:
    """Return one hash of the values along the last axis."""
    hashes = np.zeros(values.shape[:-1], np.uint64)
    for offset in range(values.shape[-1]):
        hashes = (hashes + _ONE) * _BASE + values[..., offset]
    return mixed(hashes, _HALF)


def num_matches(sketches: Sketches, others: Sketches) -> Ints:
    """Count the bins in which each sketch agrees with its counterpart: (documents,)."""
    found: Ints = np.count_nonzero(sketches == others, axis=1)
    return found
