"""Hashes of texts: which documents are held out, and which are copies of others.

A keyed hash of the text alone decides on the holdout, before anything is packed. So exact
duplicates fall on the same side, and neither the order of files nor the number of workers matters;
a larger fraction with the same seed holds out a superset.

Copies are texts of the same 128-bit hash: of 10^10 different texts, two have the same one with a
probability of 10^-19. XXH3 is no cryptographic hash: an author of texts could make some collide.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.text.documents.text_array import text_buffers

DIGEST_BYTES: Final = 16


def document_hashes(texts: pa.LargeStringArray, *, seed: int) -> npt.NDArray[np.uint64]:
    """XXH3-64 of the UTF-8 bytes of each document, keyed with `seed`; shape (num_documents,)."""
    digest = xxhash.xxh3_64_intdigest
    return np.fromiter((digest(text, seed) for text in _each(texts)), np.uint64, len(texts))


def held_out(hashes: npt.NDArray[np.uint64], *, fraction: float) -> npt.NDArray[np.bool_]:
    """Whether each document is held out; shape (num_documents,).

    Args:
        hashes: from `document_hashes`.
        fraction: to hold out, in [0, 1).
    """
    # The threshold is an exact integer: fraction is a binary fraction, times a power of two.
    return hashes < np.uint64(int(fraction * 2**64))


def text_digests(texts: pa.LargeStringArray) -> npt.NDArray[np.uint64]:
    """XXH3-128 of the UTF-8 bytes of each text: (texts, 2), the upper 64 bits first."""
    joined = b"".join(map(xxhash.xxh3_128_digest, _each(texts)))
    return np.frombuffer(joined, ">u8").astype(np.uint64).reshape(-1, 2)


def _each(texts: pa.LargeStringArray) -> Iterator[memoryview]:
    data, offsets = text_buffers(texts)
    view = data.data
    return (view[start:end] for start, end in pairwise(offsets.tolist()))
