"""Samples that carry their own length, as llm-foundry writes them: laid flat when fetched.

`ndarray:TYPE` without a length stores the size and the shape before the ids of each sample, `bytes`
the size alone. Where all samples are equally long, what stands before them is the same everywhere.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from streaming_ext.errors import CorruptDatasetError

_SHAPE_TYPES: Final = ("u1", "<u2", "<u4", "<u8")
_ONE_DIMENSION: Final = 1 << 2  # the lower two bits say the type of the dimension


@dataclass(frozen=True, kw_only=True)
class Wrapping:
    """How each sample of a set is stored.

    Attributes:
        head: bytes before the ids.
        sample_tokens: ids a sample.
        dtype: type of an id.
    """

    head: bytes
    sample_tokens: int
    dtype: str

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample, head and ids."""
        return len(self.head) + self.sample_tokens * np.dtype(self.dtype).itemsize

    def lay_flat(self, raw: bytes, samples: int) -> bytes:
        """The same shard with its ids back to back.

        Raises:
            CorruptDatasetError: a sample is of another length, or lies elsewhere.
        """
        begin = len(raw) - samples * self.sample_bytes
        offsets = np.frombuffer(raw, "<u4", count=samples + 1, offset=4).astype(np.int64)
        rows = np.frombuffer(raw, np.uint8, offset=begin).reshape(samples, self.sample_bytes)
        width = len(self.head)
        if (offsets != begin + np.arange(samples + 1) * self.sample_bytes).any() or (
            rows[:, :width] != np.frombuffer(self.head, np.uint8)
        ).any():
            raise CorruptDatasetError(f"its samples are not all of {self.sample_tokens} ids")
        flat = (offsets - np.arange(samples + 1) * width).astype("<u4")
        return b"".join(
            [raw[:4], flat.tobytes(), raw[4 + flat.nbytes : begin], rows[:, width:].tobytes()]
        )


def find_wrapping(raw: bytes, *, dtype: str, shaped: bool) -> Wrapping:
    """How the first sample of a shard is stored.

    Args:
        raw: the shard, or its beginning up to behind the first sample's head.
        dtype: type of an id.
        shaped: whether a shape stands before the ids.

    Raises:
        CorruptDatasetError: there is no such sample, or its ids are none.
    """
    try:
        begin = int(np.frombuffer(raw, "<u4", count=1, offset=4)[0])
        width = 4
        size = int(np.frombuffer(raw, "<u4", count=1, offset=begin)[0])
        count, rest = divmod(size, np.dtype(dtype).itemsize)
        if shaped:
            kind = raw[begin + 4] - _ONE_DIMENSION
            if not 0 <= kind < len(_SHAPE_TYPES):
                raise CorruptDatasetError("its samples are no rows of ids")
            shape = np.dtype(_SHAPE_TYPES[kind])
            width += 1 + shape.itemsize
            count = int(np.frombuffer(raw, shape, count=1, offset=begin + 5)[0])
            rest = size - (width - 4) - count * np.dtype(dtype).itemsize
    except (ValueError, IndexError) as error:
        raise CorruptDatasetError(f"it ends before its first sample: {error}") from error
    if rest or count < 1:
        raise CorruptDatasetError(f"its first sample of {size} bytes is no row of {dtype} ids")
    whole = len(raw[begin + width :][:size]) // np.dtype(dtype).itemsize
    ids = np.frombuffer(raw, dtype, count=min(count, whole), offset=begin + width)
    if (ids < 0).any() or (ids >= 2**32).any():
        raise CorruptDatasetError(f"its first sample holds no {dtype} ids: {int(ids.max())}")
    return Wrapping(head=raw[begin : begin + width], sample_tokens=count, dtype=dtype)
