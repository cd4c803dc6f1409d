"""A packing plan: which pieces of documents lie in each row of a split, looked up in a mapped file.

The file has a section a unit and a directory of them at its end, with the hash of each section;
the hash of the directory stands behind it. So opening costs as much as there are units, and
a unit is verified by each process on its first use:

    section      firsts of the rows   uint32 (rows + 1,)
                 starts of the pieces uint32 (pieces,), counted from the unit's first token
                 lengths and marks    uint16 or uint32 (pieces,)
    directory    JSON
    end          length of the directory, 8 bytes; its XXH3-128, 16 bytes
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.errors import CorruptDatasetError, UsageError
from streaming_ext.packing.unit import RowPieces
from streaming_ext.shards.content import content_of

VERSION: Final = 1
MAX_ROW: Final = 1 << 30  # tokens; two bits of a length are marks
_ALIGNMENT: Final = 8
_MAX_TOKENS: Final = 1 << 32
_TAIL: Final = 24
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One unit in the file.

    Attributes:
        rows, pieces: how many.
        origin: first token of the unit in the split's stream.
        offset: of the section in the file, in bytes.
        size: of the section, in bytes.
        xxh128: of the section.
    """

    rows: int
    pieces: int
    origin: int
    offset: int
    size: int
    xxh128: str


def _word(length: int) -> type[np.unsignedinteger[Any]]:
    """The type of a length with its two marks."""
    return np.uint16 if length < 1 << 14 else np.uint32


def write_plan(file: BinaryIO, units: Iterable[tuple[int, RowPieces]], *, length: int) -> None:
    """Write a plan.

    Args:
        file: empty.
        units: first token and rows of each.
        length: tokens a row.
    """
    sections = []
    offset = 0
    word = _word(length)
    bits = word(0).itemsize * 8
    for origin, unit in units:
        starts = unit.starts - origin
        if starts.size and int(starts.max()) >= _MAX_TOKENS:
            raise UsageError(
                f"Some {len(starts):,} documents have more than {_MAX_TOKENS:,} tokens together: "
                "packing= is not made for documents as long as that. Leave it out."
            )
        marks = unit.lengths | unit.begins.astype(np.int64) << bits - 1
        marks |= unit.ends.astype(np.int64) << bits - 2
        arrays = (unit.firsts.astype(np.uint32), starts.astype(np.uint32), marks.astype(word))
        data = b"".join(_padded(array.tobytes()) for array in arrays)
        sections.append(
            Section(
                rows=len(unit.firsts) - 1,
                pieces=len(starts),
                origin=origin,
                offset=offset,
                size=len(data),
                xxh128=xxhash.xxh3_128_hexdigest(data),
            )
        )
        file.write(data)
        offset += len(data)
    directory = {
        "version": VERSION,
        "sequence_length": length,
        "units": [asdict(section) for section in sections],
    }
    data = json.dumps(directory).encode()
    file.write(data + len(data).to_bytes(8, "little") + xxhash.xxh3_128_digest(data))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


class PackingPlan:
    """The rows of a split, by their numbers.

    Attributes:
        path: of the file.
        length: tokens a row.
        bounds: first row of each unit, then their number: (units + 1,).
        pieces: how many the rows hold together.
    """

    def __init__(self, path: Path, *, length: int, maps: bool = True) -> None:
        """Open a file.

        Args:
            path: of the file.
            length: tokens a row.
            maps: whether it is mapped; else it is read into memory.

        Raises:
            FileNotFoundError: there is none.
            CorruptDatasetError: it is damaged, or was made by another version.
        """
        self.path = path
        self.length = length
        self._maps = maps
        self._sections = self._map()
        rows = np.array([section.rows for section in self._sections], np.int64)
        self.bounds: Ints = np.concatenate([[0], np.cumsum(rows)])
        self.pieces = sum(section.pieces for section in self._sections)
        self._origins = np.array([section.origin for section in self._sections], np.int64)
        # Where the arrays of each unit begin, in elements of their types.
        begins = np.array([section.offset for section in self._sections], np.int64)
        starts = begins + _up(4 * (rows + 1))
        pieces = np.array([section.pieces for section in self._sections], np.int64)
        self._firsts_at, self._starts_at = begins // 4, starts // 4
        self._marks_at = (starts + _up(4 * pieces)) // self._marks.itemsize

    def _map(self) -> list[Section]:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size < _TAIL:
                raise self._damaged(f"{size} bytes")
            mapped = content_of(descriptor, size, maps=self._maps)
        finally:
            os.close(descriptor)
        count = int.from_bytes(mapped[-_TAIL:-16], "little")
        directory = mapped[max(0, size - _TAIL - count) : size - _TAIL]
        if xxhash.xxh3_128_digest(directory) != mapped[-16:]:
            raise self._damaged("its directory has another hash")
        told = json.loads(directory)
        if (told["version"], told["sequence_length"]) != (VERSION, self.length):
            raise self._damaged(
                f"version {told['version']} for rows of {told['sequence_length']}, expected "
                f"{VERSION} for {self.length}"
            )
        whole = size - size % _ALIGNMENT
        self._bytes: Bytes = np.frombuffer(mapped, np.uint8)
        self._words = np.frombuffer(mapped, np.uint32, count=whole // 4)
        word = _word(self.length)
        self._marks = np.frombuffer(mapped, word, count=whole // word(0).itemsize)
        self._verified = np.zeros(len(told["units"]), bool)
        return [Section(**section) for section in told["units"]]

    def __getstate__(self) -> dict[str, object]:
        """Another process maps the file itself."""
        return {"path": self.path, "length": self.length, "maps": self._maps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open it anew."""
        self.__init__(**state)  # type: ignore[misc]

    def look_up(self, rows: Ints) -> RowPieces:
        """The pieces of some rows: (rows,).

        Raises:
            CorruptDatasetError: a unit is damaged.
        """
        unit = np.searchsorted(self.bounds, rows, side="right") - 1
        if not self._verified[unit].all():
            for number in np.unique(unit[~self._verified[unit]]).tolist():
                self._verify(number)
        at = self._firsts_at[unit] + rows - self.bounds[unit]
        first = self._words[at].astype(np.int64)
        counts = self._words[at + 1].astype(np.int64) - first
        firsts: Ints = np.concatenate([[0], np.cumsum(counts)])
        place = np.arange(firsts[-1]) + np.repeat(first - firsts[:-1], counts)
        unit = np.repeat(unit, counts)
        marks = self._marks[self._marks_at[unit] + place]
        bits = marks.itemsize * 8
        return RowPieces(
            firsts=firsts,
            starts=self._words[self._starts_at[unit] + place] + self._origins[unit],
            lengths=(marks & marks.dtype.type((1 << bits - 2) - 1)).astype(np.int64),
            begins=(marks >> bits - 1).astype(bool),
            ends=(marks >> bits - 2 & 1).astype(bool),
        )

    def rows_with(self, first: int, stop: int) -> Ints:
        """The rows that hold any of the tokens [first, stop) of the stream, sorted."""
        found = []
        low = int(np.searchsorted(self._origins, first, side="right")) - 1
        high = int(np.searchsorted(self._origins, stop, side="left"))
        for unit in range(max(0, low), high):
            told = self.rows_of_unit(unit)
            pieces = np.flatnonzero((told.starts < stop) & (told.starts + told.lengths > first))
            rows = np.searchsorted(told.firsts, pieces, side="right") - 1
            found.append(np.unique(rows) + self.bounds[unit])
        return np.concatenate([np.empty(0, np.int64), *found])

    def rows_of_unit(self, unit: int) -> RowPieces:
        """The pieces of all rows of a unit."""
        return self.look_up(np.arange(self.bounds[unit], self.bounds[unit + 1]))

    def _verify(self, unit: int) -> None:
        section = self._sections[unit]
        data = self._bytes[section.offset : section.offset + section.size]
        if xxhash.xxh3_128_hexdigest(data.data) != section.xxh128:
            raise self._damaged(f"unit {unit} has another hash")
        self._verified[unit] = True

    def _damaged(self, cause: str) -> CorruptDatasetError:
        return CorruptDatasetError(
            f"The packing plan {self.path} is damaged: {cause}. Remove it: it is made again."
        )


def _up(sizes: Ints) -> Ints:
    return -(-sizes // _ALIGNMENT) * _ALIGNMENT
