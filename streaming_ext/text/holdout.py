"""Which documents are held out: a keyed hash of the text alone decides, before anything is packed.

So exact duplicates fall on the same side, and neither the order of files nor the number of
workers matters; a larger fraction with the same seed holds out a superset.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.text.documents.text_array import text_buffers


def document_hashes(texts: pa.LargeStringArray, *, seed: int) -> npt.NDArray[np.uint64]:
    """XXH3-64 of the UTF-8 bytes of each document, keyed with `seed`; shape (num_documents,)."""
    data, offsets = text_buffers(texts)
    view = data.data
    digest = xxhash.xxh3_64_intdigest
    hashes = (digest(view[start:end], seed) for start, end in pairwise(offsets.tolist()))
    return np.fromiter(hashes, np.uint64, len(texts))


def held_out(hashes: npt.NDArray[np.uint64], *, fraction: float) -> npt.NDArray[np.bool_]:
    """Whether each document is held out; shape (num_documents,).

    Args:
        hashes: from `document_hashes`.
        fraction: share to hold out, in [0, 1).
    """
    # The threshold is an exact integer: fraction is a binary fraction, times a power of two.
    return hashes < np.uint64(int(fraction * 2**64))
