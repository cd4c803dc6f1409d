"""Members of a tar that are all of one size: rows as `.npy` files, made in memory that is there."""

from collections.abc import Iterator

import numpy as np

from tasks.core.exports.containers import tar
from tasks.core.reading.shard_tokens import Ids

_AT_ONCE = 2**20  # bytes, which stay in the cache of a core until they are written


class NpyRows:
    """Rows of one length; the same bytes as those of `tar.members` and `tar.npy_files`.

    Attributes:
        size: bytes of a member.
    """

    def __init__(self, prefix: str, length: int, dtype: np.dtype[np.generic]) -> None:
        """Make room for some members.

        Args:
            prefix: of their names.
            length: of a row.
            dtype: of its ids.
        """
        arrays = tar.npy_files(np.zeros(length, dtype), np.array([length]))
        member = tar.content_of(tar.members(prefix, np.zeros(1, np.int64), ".npy", arrays))
        self.size = len(member)
        room = np.tile(np.frombuffer(member, np.uint8), (max(_AT_ONCE // self.size, 1), 1))
        ids = tar.BLOCK + tar.NPY_HEAD
        self._length, self._room = length, room
        self._ids = room[:, ids : ids + length * dtype.itemsize].view(dtype)
        self._digits = room[:, len(prefix) : len(prefix) + tar.DIGITS]
        self._sums = room[:, tar.CHECKSUM]
        self._sum = tar.checksum(room[0, : tar.BLOCK])  # where all digits are 0

    def members(self, first: int, ids: Ids) -> Iterator[memoryview]:
        """The bytes of some members at a time, each there until the next are asked for.

        Args:
            first: number of the first one; those of the others follow.
            ids: (rows * length,).
        """
        rows = ids.reshape(-1, self._length)
        for begin in range(0, len(rows), len(self._room)):
            some = rows[begin : begin + len(self._room)]
            count = len(some)
            digits = tar.decimal(first + begin + np.arange(count), tar.DIGITS)
            sums = self._sum + (digits - np.uint8(ord("0"))).sum(axis=1, dtype=np.int64)
            self._ids[:count] = some
            self._digits[:count] = digits
            self._sums[:count] = tar.octal(sums, tar.CHECKSUM_DIGITS)
            yield self._room[:count].reshape(-1).data
