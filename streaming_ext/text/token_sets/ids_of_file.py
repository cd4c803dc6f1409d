"""The ids of one file of a token set, wherever in it they lie, and the files before and behind."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.source_format import Span

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]  # of any type of whole numbers


class _Reads(Protocol):
    def __call__(self, start: int, end: int) -> Ids: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class IdsOfFile:
    """An open file.

    Attributes:
        count: ids that it holds.
        read: the ids [start, end).
        starts: where documents begin, as the format tells, ascending; None where it does not.
        head: bytes before the first id, and
        itemsize: bytes of each, where ids lie back to back in the file.
    """

    count: int
    read: _Reads
    starts: Ints | None = None
    head: int = 0
    itemsize: int = 1

    def within(self, span: Span | None) -> tuple[int, int]:
        """The ids [first, last) that begin in some bytes of the file; all without a span."""
        if span is None:
            return 0, self.count
        first, last = (-(-max(place - self.head, 0) // self.itemsize) for place in span)
        return min(first, self.count), min(last, self.count)

    def begins(self, place: int) -> bool:
        """Whether the format says that a document begins with this id."""
        if self.starts is None:
            return False
        index = int(np.searchsorted(self.starts, place))
        return index < len(self.starts) and int(self.starts[index]) == place

    def starts_within(self, start: int, end: int) -> Ints:
        """Beginnings of documents in [start, end)."""
        if self.starts is None:
            return np.empty(0, np.int64)
        first, last = np.searchsorted(self.starts, [start, end])
        return self.starts[first:last]


@dataclass(frozen=True, slots=True)
class _RawIds:
    path: Path
    name: str
    dtype: np.dtype[Any]
    head: int

    def __call__(self, start: int, end: int) -> Ids:
        try:
            ids = np.fromfile(
                self.path, self.dtype, end - start, offset=self.head + start * self.dtype.itemsize
            )
        except OSError as error:
            raise SourceError(f"{self.name}: cannot be read: {error.strerror}.") from error
        if len(ids) != end - start:
            raise SourceError(f"{self.name}: became shorter while it was read. Run again.")
        return ids


@dataclass(frozen=True, slots=True)
class _HeldIds:
    ids: Ids = field(repr=False)

    def __call__(self, start: int, end: int) -> Ids:
        return self.ids[start:end]


def raw_ids(
    path: Path, name: str, dtype: str, *, head: int = 0, starts: Ints | None = None
) -> IdsOfFile:
    """A file whose ids lie back to back behind a head, to its end.

    Raises:
        SourceError: they do not fill it.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    size = size_of(path, name) - head
    if size < 0 or size % kind.itemsize:
        raise SourceError(
            f"{name}: {size + head:,} bytes are no whole number of {kind.name} ids"
            + (f" behind a head of {head}" if head else "")
            + ". It is cut short, or its ids have another type (--dtype)."
        )
    return IdsOfFile(
        count=size // kind.itemsize,
        read=_RawIds(path, name, kind, head),
        starts=starts,
        head=head,
        itemsize=kind.itemsize,
    )


def held_ids(ids: Ids, *, starts: Ints | None = None) -> IdsOfFile:
    """Ids that are in memory."""
    return IdsOfFile(count=len(ids), read=_HeldIds(ids), starts=starts)


def size_of(path: Path, name: str) -> int:
    """Size of a file in bytes.

    Raises:
        SourceError: it is gone, or cannot be read.
    """
    try:
        return path.stat().st_size
    except FileNotFoundError as error:
        raise SourceError(f"{name}: the file is gone.") from error
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}.") from error


def first_bytes(path: Path, name: str, count: int) -> bytes:
    """As many bytes of the head of a file, or all where it has fewer.

    Raises:
        SourceError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}.") from error


def bytes_of(path: Path, name: str) -> bytes:
    """All of a file.

    Raises:
        SourceError: it is gone, or cannot be read.
    """
    size_of(path, name)
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}.") from error


def numbered_neighbour(path: Path, step: int, names: re.Pattern[str]) -> Path | None:
    """The file of the same name with the next number, None for the first or last of them.

    Args:
        path: of a file.
        step: 1 for the next one, -1 for the one before.
        names: what is before, the number, and what is behind it, of the names of such files.

    Raises:
        SourceError: its folder cannot be read, or lacks this file and has one further on.
    """
    match = names.fullmatch(path.name)
    if match is None:
        return None
    before, number, behind = match.groups()
    try:
        files = list(path.parent.iterdir())
    except OSError as error:
        raise SourceError(f"{path.parent}: cannot be read: {error.strerror}.") from error
    others = {
        int(other[2]): file
        for file in files
        if (other := names.fullmatch(file.name)) and (other[1], other[3]) == (before, behind)
    }
    wanted = int(number) + step
    if wanted in others:
        return others[wanted]
    if any((other - wanted) * step > 0 for other in others):
        lost = path.with_name(f"{before}{wanted:0{len(number)}}{behind}")
        raise SourceError(
            f"{lost}: the file is not there, and others of its set with numbers on either side "
            "are: documents go on from file to file. Copy it again."
        )
    return None
