"""The bytes of tar files whose members are named by numbers, and of `.npy` files, many at once.

No step is taken for a single member: heads are made as one array, (members, bytes), and Arrow joins
heads, contents and padding.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.reading.shard_tokens import Ids
from tasks.core.reading.whole_documents import Ints

BLOCK = 512
END = bytes(2 * BLOCK)  # of a tar file
DIGITS = 12  # of a number in a name
NPY_HEAD = 128
CHECKSUM_DIGITS = 6
CHECKSUM = slice(148, 148 + CHECKSUM_DIGITS)  # of a head
Bytes = npt.NDArray[np.uint8]


def npy_files(ids: Ids, ends: Ints) -> pa.LargeBinaryArray:
    """One-dimensional arrays as `numpy.save` writes them.

    Args:
        ids: of all arrays, (ids,), little-endian.
        ends: where each array ends among them, (arrays,).
    """
    lengths = np.diff(ends, prepend=0)
    heads = np.empty((len(lengths), NPY_HEAD), np.uint8)
    digits = np.char.str_len(lengths.astype("U19"))
    for width in np.unique(digits).tolist():
        chosen = np.flatnonzero(digits == width)
        before = f"{{'descr': '{ids.dtype.str}', 'fortran_order': False, 'shape': ("
        dictionary = (before + "0" * width + ",), }").ljust(NPY_HEAD - 11) + "\n"
        head = b"\x93NUMPY\x01\x00" + np.uint16(NPY_HEAD - 10).tobytes() + dictionary.encode()
        heads[chosen] = np.frombuffer(head, np.uint8)
        first = 10 + len(before)
        heads[chosen, first : first + width] = decimal(lengths[chosen], width)
    return _joined(_binaries(heads), _cut(ids, ends))


def members(prefix: str, numbers: Ints, suffix: str, content: pa.LargeBinaryArray) -> pa.Array:
    """Members of a tar file, each with its head and padding: a binary each.

    Args:
        prefix: of the names.
        numbers: that follow in the names, with leading zeros, (members,).
        suffix: of the names.
        content: of each.
    """
    sizes = np.asarray(pc.binary_length(content))
    template = np.zeros(BLOCK, np.uint8)
    name = prefix + "0" * DIGITS + suffix
    _put(template, 0, name.encode())
    _put(template, 100, b"0000644\00000000\00000000\0")  # mode, user, group
    _put(template, 136, b"00000000000\0")  # time
    _put(template, 148, b"000000\0 0")  # checksum; an ordinary file
    _put(template, 257, b"ustar\000")
    heads = np.tile(template, (len(numbers), 1))
    heads[:, len(prefix) : len(prefix) + DIGITS] = decimal(numbers, DIGITS)
    heads[:, 124:135] = octal(sizes, 11)
    heads[:, 135] = 0
    heads[:, CHECKSUM] = octal(checksum(heads), CHECKSUM_DIGITS)
    padding = -sizes % BLOCK
    zeros = np.zeros(int(padding.sum()), np.uint8)
    return _joined(_binaries(heads), content, _cut(zeros, np.cumsum(padding)))


def checksum(heads: Bytes) -> Ints:
    """The sum of the bytes of heads, (..., 512), of which those of the checksum count as blanks."""
    own = heads[..., 148:156].sum(axis=-1, dtype=np.int64)
    sums: Ints = heads.sum(axis=-1, dtype=np.int64) - own + 8 * ord(" ")
    return sums


def joined(parts: list[pa.Array]) -> pa.Array:
    """The members of samples of several, one behind the other: a binary a sample."""
    return parts[0] if len(parts) == 1 else _joined(*parts)


def content_of(array: pa.Array) -> memoryview:
    """The bytes of all binaries of an array, back to back."""
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    return memoryview(data)[int(places[0]) : int(places[-1])]


def _put(head: Bytes, at: int, data: bytes) -> None:
    head[at : at + len(data)] = np.frombuffer(data, np.uint8)


def decimal(numbers: Ints, width: int) -> Bytes:
    """Digits as ASCII, (numbers, width)."""
    places = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // places % 10 + ord("0")).astype(np.uint8)


def octal(numbers: Ints, width: int) -> Bytes:
    """The same in octal."""
    places = 3 * np.arange(width - 1, -1, -1, dtype=np.int64)
    return ((numbers[:, None] >> places & 7) + ord("0")).astype(np.uint8)


def _binaries(rows: Bytes) -> pa.LargeBinaryArray:
    count, width = rows.shape
    return _cut(rows.reshape(-1), np.arange(1, count + 1, dtype=np.int64) * width)


def _cut(values: npt.NDArray[np.generic], ends: Ints) -> pa.LargeBinaryArray:
    """Values as binaries that end at `ends`, without a copy."""
    places = np.concatenate([[0], ends]).astype(np.int64) * values.itemsize
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(ends), [None, pa.py_buffer(places), data]
    )


def _joined(*parts: pa.Array) -> pa.Array:
    empty = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(*parts, empty)
