"""A packing plan: which segments of documents each row of a split holds, in a mapped file.

The file has a section a group and a directory of them at its end, with the hash of each section;
the hash of the directory stands behind it. So opening costs as much as there are groups, and
a group is verified by each process on its first use:

    section      firsts of the rows   uint32 (rows + 1,)
                 starts of the segments uint32 (segments,), counted from the group's first token
                 lengths and marks    uint16 or uint32 (segments,)
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
from streaming_ext.reading.packing import RowSegments, pack_group

VERSION: Final = 1
MAX_ROW: Final = 1 << 30  # tokens; two bits of a length are marks
_ALIGNMENT: Final = 8
_MAX_TOKENS: Final = 1 << 32
Bytes = npt.NDArray[np.uint8]


def _word(length: int) -> type[np.unsignedinteger[Any]]:
    """The type of a length with its two marks."""
    return np.uint16 if length < 1 << 14 else np.uint32


def write_plan(file: BinaryIO, groups: Iterable[tuple[int, RowSegments]], *, length: int) -> None:
    """Write a plan.

    Args:
        file: empty.
        groups: first token and rows of each.
        length: tokens a row.
    """
    sections = []
    offset = 0
    word = _word(length)
    bits = word(0).itemsize * 8
    for origin, group in groups:
        starts = group.starts - origin
        if starts.size and int(starts.max()) >= _MAX_TOKENS:
            raise UsageError(
                f"Some {len(starts):,} documents have more than {_MAX_TOKENS:,} tokens together: "
                "packing= is not made for documents as long as that. Leave it out."
            )
        marks = group.lengths | group.begins.astype(np.int64) << bits - 1
        marks |= group.ends.astype(np.int64) << bits - 2
        arrays = (group.firsts.astype(np.uint32), starts.astype(np.uint32), marks.astype(word))
        data = b"".join(_padded(array.tobytes()) for array in arrays)
        sections.append(
            {
                "rows": len(group.firsts) - 1,
                "segments": len(starts),
                "origin": origin,  # first token of the group in the split's stream
                "offset": offset,  # of the section in the file, in bytes
                "size": len(data),
                "xxh128": xxhash.xxh3_128_hexdigest(data),
            }
        )
        file.write(data)
        offset += len(data)
    directory = {"version": VERSION, "sequence_length": length, "groups": sections}
    write_directory(file, directory)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


class PackingPlan:
    """The rows of a split, by their numbers.

    Attributes:
        path: of the file.
        length: tokens a row.
        bounds: first row of each group, then their number: (groups + 1,).
        segments: how many the rows hold together.
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
        self._bytes, directory = map_file(path, version=VERSION, sequence_length=length)
        self._sections: list[dict[str, Any]] = directory["groups"]
        self._words = self._bytes.view(np.uint32)
        self._marks = self._bytes.view(_word(length))
        self._verified = np.zeros(len(self._sections), bool)
        rows, segments = self._of_groups("rows"), self._of_groups("segments")
        self.bounds: Ints = np.concatenate([[0], np.cumsum(rows)])
        self.segments = int(segments.sum())
        self._origins = self._of_groups("origin")
        # Where the arrays of each group begin, in elements of their types.
        begins = self._of_groups("offset")
        starts = begins + _up(4 * (rows + 1))
        self._firsts_at, self._starts_at = begins // 4, starts // 4
        self._marks_at = (starts + _up(4 * segments)) // self._marks.itemsize

    def _of_groups(self, name: str) -> Ints:
        return np.array([section[name] for section in self._sections], np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process maps the file itself."""
        return partial(PackingPlan, length=self.length), (self.path,)

    def look_up(self, rows: Ints) -> RowSegments:
        """The segments of some rows: (rows,).

        Raises:
            CorruptDatasetError: a group is damaged.
        """
        group = np.searchsorted(self.bounds, rows, side="right") - 1
        if not self._verified[group].all():
            for number in np.unique(group[~self._verified[group]]).tolist():
                self._verify(number)
        at = self._firsts_at[group] + rows - self.bounds[group]
        first = self._words[at].astype(np.int64)
        counts = self._words[at + 1].astype(np.int64) - first
        firsts: Ints = np.concatenate([[0], np.cumsum(counts)])
        offset = ranges(first, counts)
        group = np.repeat(group, counts)
        marks = self._marks[self._marks_at[group] + offset]
        bits = marks.itemsize * 8
        return RowSegments(
            firsts=firsts,
            starts=self._words[self._starts_at[group] + offset] + self._origins[group],
            lengths=(marks & marks.dtype.type((1 << bits - 2) - 1)).astype(np.int64),
            begins=(marks >> bits - 1).astype(bool),
            ends=(marks >> bits - 2 & 1).astype(bool),
        )

    def rows_with(self, first: int, stop: int) -> Ints:
        """The rows that hold any of the tokens [first, stop) of the stream, sorted."""
        found = []
        low = int(np.searchsorted(self._origins, first, side="right")) - 1
        high = int(np.searchsorted(self._origins, stop, side="left"))
        for group in range(max(0, low), high):
            directory = self.rows_of_group(group)
            segments = np.flatnonzero(
                (directory.starts < stop) & (directory.starts + directory.lengths > first)
            )
            rows = np.searchsorted(directory.firsts, segments, side="right") - 1
            found.append(np.unique(rows) + self.bounds[group])
        return np.concatenate([np.empty(0, np.int64), *found])

    def rows_of_group(self, group: int) -> RowSegments:
        """The segments of all rows of a group."""
        return self.look_up(np.arange(self.bounds[group], self.bounds[group + 1]))

    def _verify(self, group: int) -> None:
        section = self._sections[group]
        data = self._bytes[section["offset"] :][: section["size"]]
        if xxhash.xxh3_128_hexdigest(data.data) != section["xxh128"]:
            raise damaged(self.path, f"group {group} has another hash")
        self._verified[group] = True


def _up(sizes: Ints) -> Ints:
    return -(-sizes // _ALIGNMENT) * _ALIGNMENT


GROUP_DOCUMENTS: Final = 1 << 18  # packed among themselves
GROUP_TOKENS: Final = 1 << 30  # or fewer documents, where they are long
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
        multiple: of tokens that each segment takes in its row.

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


def plan_groups(
    documents: Iterable[Documents], *, count: int, tokens: int, length: int, multiple: int = 1
) -> Iterator[tuple[int, RowSegments]]:
    """First token and rows of each group.

    Args:
        documents: all of a split, in order.
        count: how many there are.
        tokens: that they have together, about.
        length: of a row.
        multiple: see `open_plan`.
    """
    threads = min(4, os.cpu_count() or 1)
    waiting: deque[tuple[int, Future[RowSegments]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="shardmill-packing") as pool:
        for number, group in enumerate(_cut(documents, count=count, tokens=tokens)):
            rows = pool.submit(
                pack_group, *group, length=length, key=_KEY + number, multiple=multiple
            )
            waiting.append((int(group.starts[0]), rows))
            if len(waiting) > threads:
                origin, done = waiting.popleft()
                yield origin, done.result()
        for origin, done in waiting:
            yield origin, done.result()


def _cut(documents: Iterable[Documents], *, count: int, tokens: int) -> Iterator[Documents]:
    """The documents of each group: as many in each, to within one."""
    groups = max(1, round(count / GROUP_DOCUMENTS), -(-tokens // GROUP_TOKENS))
    ends = [count * (number + 1) // groups for number in range(groups)]
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


def _joined(segments: list[Documents]) -> Documents:
    return Documents(
        np.concatenate([segment.starts for segment in segments]),
        np.concatenate([segment.lengths for segment in segments]),
    )


def _make(
    cache: ShardCache, file: BinaryIO, length: int, left_out: Documents | None, multiple: int
) -> None:
    manifest, split = manifest_of(cache)
    documents, count = documents_of(cache), manifest.splits[split].documents
    if left_out is not None:
        documents, count = _without(documents, left_out.starts), count - len(left_out.starts)
    groups = plan_groups(
        documents,
        count=count,
        tokens=int(cache.index.token_starts[-1]),
        length=length,
        multiple=multiple,
    )
    write_plan(file, groups, length=length)


def _without(documents: Iterable[Documents], starts: Ints) -> Iterator[Documents]:
    """The documents that do not begin at any of `starts`."""
    for some in documents:
        kept = ~np.isin(some.starts, starts)
        yield Documents(some.starts[kept], some.lengths[kept])
