"""Looking into an Arrow array of texts without copying it."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def text_buffers(
    texts: pa.LargeStringArray,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes and the offsets into them, both as views; the first offset may be above 0.

    Returns:
        data: uint8 (bytes of the whole buffer,).
        offsets: int64 (num_texts + 1,); text i is `data[offsets[i]:offsets[i + 1]]`.
    """
    _, offset_buffer, data_buffer = texts.buffers()
    if offset_buffer is None:  # as some empty arrays have it
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offset_buffer, np.int64, len(texts) + 1, texts.offset * 8)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.empty(0, np.uint8)
    return data, offsets


def num_text_bytes(texts: pa.LargeStringArray) -> int:
    """UTF-8 bytes of all texts; 0 where ids of tokens stand in their place, as binaries."""
    if pa.types.is_large_binary(texts.type):
        return 0
    _, offsets = text_buffers(texts)
    return int(offsets[-1] - offsets[0])


def text_of_bytes(data: bytes) -> pa.LargeStringArray:
    """An array of one text, without copying it."""
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    return pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(data))


def is_utf8(data: bytes) -> bool:
    """Whether some bytes are text, without making characters of them."""
    try:
        text_of_bytes(data).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def cut_by_bytes(texts: pa.LargeStringArray, batch_bytes: int) -> Iterator[tuple[int, int]]:
    """Pieces [start, end) of at most so many bytes; a longer text stands alone."""
    if len(texts) == 0:
        return
    _, offsets = text_buffers(texts)
    start = 0
    while start < len(texts):
        limit = offsets[start] + batch_bytes
        end = max(start + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        yield start, end
        start = end
