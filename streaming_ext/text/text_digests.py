"""128-bit hashes of texts: by these, copies of a text are told from other texts.

They are not compared by their characters: of 10^10 different texts, two have the same hash with a
probability of 10^-19. XXH3 is no cryptographic hash: who controls texts could make some collide.
"""

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.text.documents.text_array import text_buffers

DIGEST_BYTES: Final = 16


def text_digests(texts: pa.LargeStringArray) -> npt.NDArray[np.uint64]:
    """XXH3-128 of the UTF-8 bytes of each text: (texts, 2), the upper 64 bits first."""
    data, offsets = text_buffers(texts)
    view, digest = data.data, xxhash.xxh3_128_digest
    joined = b"".join([digest(view[start:end]) for start, end in pairwise(offsets.tolist())])
    return np.frombuffer(joined, ">u8").astype(np.uint64).reshape(-1, 2)
