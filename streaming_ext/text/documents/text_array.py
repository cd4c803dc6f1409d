"""Access to the buffers of an Arrow array of texts, without a copy."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_FEW: Final = 2**14  # positions, for which a call of Arrow costs more than it saves


def text_buffers(
    texts: pa.LargeStringArray,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes and the offsets into them, both as views; the first offset may be above 0.

    Returns:
        data: uint8 (bytes of the whole buffer,).
        offsets: int64 (num_texts + 1,); text i is `data[offsets[i]:offsets[i + 1]]`.
    """
    _, offset_buffer, data_buffer = texts.buffers()
    if offset_buffer is None:  # some empty arrays have none
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offset_buffer, np.int64, len(texts) + 1, texts.offset * 8)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.empty(0, np.uint8)
    return data, offsets


def num_text_bytes(texts: pa.LargeStringArray) -> int:
    """Count the UTF-8 bytes of all texts; 0 for documents of token ids, which are binaries."""
    if pa.types.is_large_binary(texts.type):
        return 0
    _, offsets = text_buffers(texts)
    return int(offsets[-1] - offsets[0])


def cut_by_bytes(texts: pa.LargeStringArray, batch_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield spans [start, end) of texts, at most this many bytes; a longer text is a span alone."""
    if len(texts) == 0:
        return
    _, offsets = text_buffers(texts)
    start = 0
    while start < len(texts):
        limit = offsets[start] + batch_bytes
        end = max(start + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        yield start, end
        start = end


def taken(values: npt.NDArray[Any], positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `values[positions]`, three times as fast; no position may be beyond the values."""
    if len(positions) < _FEW:
        return np.asarray(values[positions])
    return np.asarray(pc.take(pa.array(values), pa.array(positions), boundscheck=False))
