"""CRC-32C and CRC-64/NVME, by which object stores tell of whole objects, in NumPy.

A CRC is linear: the words of the data lie in rows of `_LANES`, each lane is a CRC of its own that
moves on by a whole row at a time, and in the end the lanes are folded into one. Some 300 MB/s.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.unsignedinteger[Any]]

_LANES = 4096
_POLYNOMIALS = {"crc32c": (0x82F63B78, 32), "crc64nvme": (0x9A6C9329AC4BC9B5, 64)}
_LONGEST = 48  # powers of two, of bits: no object is as long
CRCS = tuple(_POLYNOMIALS)


class Crc:
    """A CRC of bytes that come piece by piece, as `hashlib` has it."""

    def __init__(self, kind: str) -> None:
        """Begin with no bytes; `kind` is one of `CRCS`."""
        self._moves = _moves(kind)
        self._tables = _tables(kind)
        self._bits = _POLYNOMIALS[kind][1]
        self._type = self._moves[0].dtype
        self._lanes: Words = np.zeros(_LANES, self._type)
        self._rest = b""
        self._size = 0

    def update(self, data: bytes) -> None:
        """Take further bytes."""
        self._size += len(data)
        data = self._rest + data if self._rest else data
        row = self._lanes.nbytes
        whole = len(data) // row * row
        self._rest = bytes(data[whole:])
        # rows: (rows, lanes)
        self._take(np.frombuffer(data, self._type, whole // self._type.itemsize))

    def digest(self) -> bytes:
        """The CRC of all bytes, the highest byte first."""
        tail = Crc.__new__(Crc)
        tail.__dict__.update(self.__dict__, _lanes=np.zeros(_LANES, self._type))
        padded = bytes(self._lanes.nbytes - len(self._rest)) + self._rest  # zeros before do nothing
        tail._take(np.frombuffer(padded, self._type))
        ones = np.full(1, (1 << self._bits) - 1, self._type)
        value = (
            _moved(self._folded(), 8 * len(self._rest), self._moves)
            ^ tail._folded()
            ^ _moved(ones, 8 * self._size, self._moves)
            ^ ones
        )
        return int(value[0]).to_bytes(self._bits // 8, "big")

    def _take(self, words: Words) -> None:
        """Move each lane on by a row, for each row of words."""
        if not len(words):
            return
        first, *others = self._tables
        # digits: (tables, lanes), the 16 bits of each word that a table is for
        digits = np.empty((len(self._tables), _LANES), np.intp)
        one, moved, lanes = (np.empty(_LANES, self._type) for _ in range(3))
        lanes[:] = self._lanes
        for row in words.reshape(-1, _LANES):
            digits[...] = lanes.view("<u2").reshape(_LANES, -1).T
            np.take(first, digits[0], out=moved, mode="clip")  # "raise" would copy them
            for table, digit in zip(others, digits[1:], strict=True):
                moved ^= np.take(table, digit, out=one, mode="clip")
            np.bitwise_xor(moved, row, out=lanes)
        self._lanes = lanes

    def _folded(self) -> Words:
        """The CRC of the words in the lanes, one behind another: (1,)."""
        lanes = self._lanes
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = _moved(lanes[:half], half * self._bits, self._moves) ^ lanes[half:]
        return _moved(lanes, self._bits, self._moves)


@cache
def _moves(kind: str) -> list[Words]:
    """What 1, 2, 4, ... zero bits behind it make of each bit of a CRC: (bits,) each."""
    polynomial, bits = _POLYNOMIALS[kind]
    columns = [polynomial, *(1 << bit for bit in range(bits - 1))]
    moves: list[Words] = [np.array(columns, f"<u{bits // 8}")]
    while len(moves) < _LONGEST:
        moves.append(_applied(moves[-1], moves[-1]))
    return moves


def _applied(move: Words, values: Words) -> Words:
    """What a move makes of values."""
    result = np.zeros_like(values)
    for bit, column in enumerate(move):
        result ^= ((values >> values.dtype.type(bit)) & values.dtype.type(1)) * column
    return result


def _moved(values: Words, bits: int, moves: Sequence[Words]) -> Words:
    """What so many zero bits behind them make of CRCs."""
    for power, move in enumerate(moves):
        if bits >> power & 1:
            values = _applied(move, values)
    return values


@cache
def _tables(kind: str) -> list[Words]:
    """What a row of zeros makes of 16 bits of a CRC: a table for each 16 of them."""
    moves, bits = _moves(kind), _POLYNOMIALS[kind][1]
    row = (_LANES * bits).bit_length() - 1
    tables = []
    for first in range(0, bits, 16):
        table: Words = np.zeros(1, moves[0].dtype)
        for column in moves[row][first : first + 16]:
            table = np.concatenate([table, table ^ column])
        tables.append(table)
    return tables
