"""The code points on which engines may split text differently, and the documents that hold one.

Engines know the same patterns, but each brings its own tables of Unicode. A code point that Unicode
14.0 assigned is of the same class in all of them, with few exceptions; tests try each code point
with the pinned versions.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

_TABLE: Final = Path(__file__).with_name("unsafe_code_points.json")
_SCAN_BYTES: Final = 1 << 20  # of a block: it stays in the cache of a processor
_HIGH_BITS: Final = np.uint64(0x8080808080808080)


@dataclass(frozen=True)
class CodePoints:
    """A set of code points beyond ASCII, as disjoint ranges with both ends included, ascending."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def unsafe(cls) -> "CodePoints":
        """Those that are left to the reference."""
        return cls(tuple((start, end) for start, end in json.loads(_TABLE.read_bytes())))

    @classmethod
    def of(cls, points: Iterable[int]) -> "CodePoints":
        """These code points."""
        ranges: list[tuple[int, int]] = []
        for point in sorted(set(points)):
            if ranges and ranges[-1][1] == point - 1:
                ranges[-1] = (ranges[-1][0], point)
            else:
                ranges.append((point, point))
        return cls(tuple(ranges))

    def rows_with_any(
        self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """The documents that hold one of these code points, ascending.

        Args:
            data: valid UTF-8.
            offsets: document i is `data[offsets[i]:offsets[i + 1]]`.
        """
        # Arrow's buffers begin aligned; words that do not are read several times slower.
        first, end = int(offsets[0]), int(offsets[-1])
        found = [np.empty(0, np.int64)]
        for start in range(first & ~7, end, _SCAN_BYTES):
            stop = min(start + _SCAN_BYTES, end)
            found.append(self._candidates(data[start:stop], data[start + 1 : stop + 1]) + start)
        # These share two bytes with a code point of the set; now all of them are read.
        places = np.concatenate(found)
        places = places[places >= first]
        places = places[self._table[_decode_at(data, places)]]
        rows: npt.NDArray[np.int64] = np.unique(np.searchsorted(offsets, places, "right") - 1)
        return rows

    def _candidates(
        self, block: npt.NDArray[np.uint8], following: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.int64]:
        """Where two bytes stand that one of these code points may begin with.

        Eight bytes at once are asked whether one is beyond ASCII. In most text few are, and only
        these are looked at.
        """
        block = block[: len(following)]  # no character begins with the last byte of all
        size = len(block) & ~7
        words = np.flatnonzero((block[:size].view(np.uint64) & _HIGH_BITS) != 0)
        if len(words) * 64 > size:
            return np.flatnonzero(self._two_bytes.take(_pairs(block, following)))
        near = (words[:, None] * 8 + np.arange(8)).ravel()
        near = np.append(near, np.arange(size, len(block)))
        near = near[block[near] >= 0xC0]
        found: npt.NDArray[np.int64] = near[self._two_bytes[_pairs(block[near], following[near])]]
        return found

    @cached_property
    def _table(self) -> npt.NDArray[np.bool_]:
        """(0x110000,) by code point: whether it is one of these."""
        table = np.zeros(0x110000, bool)
        for start, end in self.ranges:
            table[start : end + 1] = True
        return table

    @cached_property
    def _two_bytes(self) -> npt.NDArray[np.bool_]:
        """(65536,) by first and second byte: whether one of these code points begins so."""
        table = np.zeros(1 << 16, bool)
        for start, end in self.ranges:
            # From U+0800 on, 64 code points in a row share all bytes but the last.
            step = 64 if start >= 0x800 else 1
            for point in {*range(start, end + 1, step), end} - {*range(0xD800, 0xE000)}:
                first, second = chr(point).encode()[:2]
                table[first << 8 | second] = True
        return table


def _pairs(first: npt.NDArray[np.uint8], second: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    pairs = first.astype(np.uint16)
    pairs <<= 8
    pairs |= second
    return pairs


def _decode_at(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The code points beyond ASCII that begin at some places of valid UTF-8."""
    lead = data[places].astype(np.int64)
    # extra: how many bytes follow the first
    extra = 1 + (lead >= 0xE0).astype(np.int64) + (lead >= 0xF0)
    points: npt.NDArray[np.int64] = lead & (0x3F >> extra)
    for step in (1, 2, 3):
        more = extra >= step
        points[more] = (points[more] << 6) | (data[places[more] + step] & 0x3F)
    return points
