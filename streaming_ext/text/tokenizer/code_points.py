"""The code points on which engines may split text differently, and the documents that hold one.

Engines know the same patterns, but each has its own tables of Unicode. A code point that Unicode
14.0 assigned is of the same class in all of them, with few exceptions; tests try each code point
with the pinned versions.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.arrays import Ints
from streaming_ext.text.documents.text_array import text_buffers

TABLE: Final = Path(__file__).with_name("unsafe_code_points.json")
_DENSE: Final = 8  # bytes for one beyond ASCII; in most text there are more

Ranges = Sequence[tuple[int, int]]  # of code points beyond ASCII, both ends included, ascending


@cache
def unsafe_ranges() -> Ranges:
    """The code points that are left to the reference."""
    return tuple((start, end) for start, end in json.loads(TABLE.read_bytes()))


def rows_with_any(texts: pa.LargeStringArray, ranges: Ranges) -> Ints:
    """The texts that hold a code point of these ranges, ascending.

    Args:
        texts: valid UTF-8, without nulls.
        ranges: of code points beyond ASCII.
    """
    if not ranges:
        return np.empty(0, np.int64)
    data, offsets = text_buffers(texts)
    block = data[int(offsets[0]) : int(offsets[-1])]
    beyond = block >= 0x80
    if np.count_nonzero(beyond) * _DENSE < len(block):  # search only the bytes beyond ASCII
        at = np.flatnonzero(beyond)
        ends = np.searchsorted(at, offsets - offsets[0])
        texts = pa.LargeStringArray.from_buffers(
            len(texts), pa.py_buffer(ends), pa.py_buffer(block[at])
        )
    pattern = "".join(rf"\x{{{start:x}}}-\x{{{end:x}}}" for start, end in ranges)
    return np.flatnonzero(np.asarray(pc.match_substring_regex(texts, f"[{pattern}]")))
