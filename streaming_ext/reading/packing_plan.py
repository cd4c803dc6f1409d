"""A packing plan: which pieces of documents lie in each row of a split, looked up in a mapped file.

The file has a section a unit and a directory of them at its end, with the hash of each section;
the hash of the directory stands behind it. So opening costs as much as there are units, and
a unit is verified by each process on its first use:

    section      firsts of the rows   uint32 (rows + 1,)
                 starts of the pieces uint32 (pieces,), counted from the unit's first token
                 lengths and marks    uint16 or uint32 (pieces,)
    directory    JSON
    end          length of the directory, 8 bytes; its XXH3-128, 16 bytes

Opening the packing plan of a split; where there is none, one process makes it for all.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import xxhash

from streaming_ext.base.arrays import Ints, ranges
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.format.schema import content_hash
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.documents import Documents, documents_of, manifest_of
from streaming_ext.reading.made_once import damaged, made_once, map_file, write_directory
from streaming_ext.reading.packing import RowPieces, pack_unit

VERSION: Final = 1
MAX_ROW: Final = 1 << 30  # tokens; two bits of a length are marks
_ALIGNMENT: Final = 8
_MAX_TOKENS: Final = 1 << 32
Bytes = npt.NDArray[np.uint8]


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
            {
                "rows": len(unit.firsts) - 1,
                "pieces": len(starts),
                "origin": origin,  # first token of the unit in the split's stream
                "offset": offset,  # of the section in the file, in bytes
                "size": len(data),
                "xxh128": xxhash.xxh3_128_hexdigest(data),
            }
        )
        file.write(data)
        offset += len(data)
    directory = {"version": VERSION, "sequence_length": length, "units": sections}
    write_directory(file, directory)


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

    def __init__(self, path: Path, *, length: int) -> None:
        """Open a file.

        Args:
            path: of the file.
            length: tokens a row.

        Raises:
            FileNotFoundError: there is none.
            CorruptDatasetError: it is damaged, or was made by another version.
        """
        self.path = path
        self.length = length
        self._bytes, told = map_file(path, version=VERSION, sequence_length=length)
        self._sections: list[dict[str, Any]] = told["units"]
        self._words = self._bytes.view(np.uint32)
        self._marks = self._bytes.view(_word(length))
        self._verified = np.zeros(len(self._sections), bool)
        rows, pieces = self._of_units("rows"), self._of_units("pieces")
        self.bounds: Ints = np.concatenate([[0], np.cumsum(rows)])
        self.pieces = int(pieces.sum())
        self._origins = self._of_units("origin")
        # Where the arrays of each unit begin, in elements of their types.
        begins = self._of_units("offset")
        starts = begins + _up(4 * (rows + 1))
        self._firsts_at, self._starts_at = begins // 4, starts // 4
        self._marks_at = (starts + _up(4 * pieces)) // self._marks.itemsize

    def _of_units(self, name: str) -> Ints:
        return np.array([section[name] for section in self._sections], np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process maps the file itself."""
        return partial(PackingPlan, length=self.length), (self.path,)

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
        place = ranges(first, counts)
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
        data = self._bytes[section["offset"] :][: section["size"]]
        if xxhash.xxh3_128_hexdigest(data.data) != section["xxh128"]:
            raise damaged(self.path, f"unit {unit} has another hash")
        self._verified[unit] = True


def _up(sizes: Ints) -> Ints:
    return -(-sizes // _ALIGNMENT) * _ALIGNMENT


UNIT_DOCUMENTS: Final = 1 << 18  # packed among themselves
UNIT_TOKENS: Final = 1 << 30  # or fewer documents, where they are long
_KEY: Final = 17  # of the permutations: the plan of given lengths is always the same


def open_plan(
    cache: ShardCache,
    length: int,
    *,
    left_out: Documents | None = None,
    multiple: int = 1,
) -> PackingPlan:
    """The plan of a split for rows of `length` tokens.

    Args:
        cache: of the split.
        length: tokens a row.
        left_out: documents that no row holds.
        multiple: of tokens that each piece takes in its row.

    Raises:
        UsageError: the dataset does not know its documents, or rows are too long.
        CorruptDatasetError: what the dataset says of its documents is missing or damaged.
        StorageError: the plan cannot be kept.
    """
    if length >= MAX_ROW:
        raise UsageError(f"`sequence_length` must be below {MAX_ROW} with packing, got {length}.")
    name = f"{cache.name}.best_fit-{VERSION}-{length}"
    if left_out is not None and len(left_out.starts):
        name += f"-without-{content_hash(np.sort(left_out.starts).tobytes())[:16]}"
    if multiple > 1:
        name += f"-of-{multiple}"
    name += ".plan"
    return made_once(
        cache.beside / name,
        what="The packing plan",
        opened=lambda path: PackingPlan(path, length=length),
        make=lambda file: _make(cache, file, length, left_out, multiple),
    )


def plan_units(
    documents: Iterable[Documents], *, count: int, tokens: int, length: int, multiple: int = 1
) -> Iterator[tuple[int, RowPieces]]:
    """First token and rows of each unit.

    Args:
        documents: all of a split, in order.
        count: how many there are.
        tokens: that they have together, about.
        length: of a row.
        multiple: see `open_plan`.
    """
    threads = min(4, os.cpu_count() or 1)
    waiting: deque[tuple[int, Future[RowPieces]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="shardmill-packing") as pool:
        for number, unit in enumerate(_cut(documents, count=count, tokens=tokens)):
            rows = pool.submit(
                pack_unit, *unit, length=length, key=_KEY + number, multiple=multiple
            )
            waiting.append((int(unit.starts[0]), rows))
            if len(waiting) > threads:
                origin, done = waiting.popleft()
                yield origin, done.result()
        for origin, done in waiting:
            yield origin, done.result()


def _cut(documents: Iterable[Documents], *, count: int, tokens: int) -> Iterator[Documents]:
    """The documents of each unit: as many in each, to within one."""
    units = max(1, round(count / UNIT_DOCUMENTS), -(-tokens // UNIT_TOKENS))
    ends = [count * (number + 1) // units for number in range(units)]
    held: list[Documents] = []
    seen = 0
    for some in documents:
        rest = some
        while ends and seen + len(rest.starts) >= ends[0]:
            inside = ends.pop(0) - seen
            held.append(Documents(rest.starts[:inside], rest.lengths[:inside]))
            if any(len(each.starts) for each in held):
                yield _joined(held)
            held, seen = [], seen + inside
            rest = Documents(rest.starts[inside:], rest.lengths[inside:])
        held.append(rest)
        seen += len(rest.starts)
    if seen != count:
        raise CorruptDatasetError(
            f"The tables of documents list {seen:,} documents, the manifest {count:,}. "
            "Run `shardmill verify` on the dataset."
        )


def _joined(pieces: list[Documents]) -> Documents:
    return Documents(
        np.concatenate([piece.starts for piece in pieces]),
        np.concatenate([piece.lengths for piece in pieces]),
    )


def _make(
    cache: ShardCache, file: BinaryIO, length: int, left_out: Documents | None, multiple: int
) -> None:
    manifest, split = manifest_of(cache, "packing")
    documents, count = documents_of(cache), manifest.splits[split].documents
    if left_out is not None:
        documents, count = _without(documents, left_out.starts), count - len(left_out.starts)
    units = plan_units(
        documents,
        count=count,
        tokens=int(cache.index.token_starts[-1]),
        length=length,
        multiple=multiple,
    )
    write_plan(file, units, length=length)


def _without(documents: Iterable[Documents], starts: Ints) -> Iterator[Documents]:
    """The documents that do not begin at any of `starts`."""
    for some in documents:
        kept = ~np.isin(some.starts, starts)
        yield Documents(some.starts[kept], some.lengths[kept])
