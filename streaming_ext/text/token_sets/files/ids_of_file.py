"""The ids of one file of a token set, wherever in it they lie, and the files before and behind."""

import re
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import SourceError
from streaming_ext.text.documents.files import Span
from streaming_ext.text.token_sets.files.set_file import SetFile

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
    file: SetFile
    dtype: np.dtype[Any]
    head: int

    def __call__(self, start: int, end: int) -> Ids:
        first, last = (self.head + place * self.dtype.itemsize for place in (start, end))
        return np.frombuffer(self.file.read(first, last), self.dtype)


@dataclass(frozen=True, slots=True)
class _HeldIds:
    ids: Ids = field(repr=False)

    def __call__(self, start: int, end: int) -> Ids:
        return self.ids[start:end]


def raw_ids(file: SetFile, dtype: str, *, head: int = 0, starts: Ints | None = None) -> IdsOfFile:
    """A file whose ids lie back to back behind a head, to its end.

    Raises:
        SourceError: they do not fill it.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    size = file.size - head
    if size < 0 or size % kind.itemsize:
        raise SourceError(
            f"{file.name}: {size + head:,} bytes are no whole number of {kind.name} ids"
            + (f" behind a head of {head}" if head else "")
            + ". It is cut short, or its ids have another type (--dtype)."
        )
    return IdsOfFile(
        count=size // kind.itemsize,
        read=_RawIds(file, kind, head),
        starts=starts,
        head=head,
        itemsize=kind.itemsize,
    )


def held_ids(ids: Ids, *, starts: Ints | None = None) -> IdsOfFile:
    """Ids that are in memory."""
    return IdsOfFile(count=len(ids), read=_HeldIds(ids), starts=starts)


def _family(file: SetFile, names: re.Pattern[str]) -> dict[int, str]:
    """The files of its folder that are called as it is, but for their number, by that.

    Args:
        file: of a set.
        names: what is before, the number, and what is behind it, of the names of such files.

    Raises:
        SourceError: the folder cannot be read.
    """
    match = names.fullmatch(file.key)
    if match is None:
        return {}
    before, _, behind = match.groups()
    return {
        int(other[2]): name
        for name in file.folder.names()
        if (other := names.fullmatch(name)) and (other[1], other[3]) == (before, behind)
    }


def numbered_neighbour(file: SetFile, step: int, names: re.Pattern[str]) -> SetFile | None:
    """The file of the same name with the next number, None for the first or last of them.

    Args:
        file: of a set.
        step: 1 for the next one, -1 for the one before.
        names: see `_family`.

    Raises:
        SourceError: its folder cannot be read, or lacks this file and has one further on.
    """
    match = names.fullmatch(file.key)
    if match is None:
        return None
    before, number, behind = match.groups()
    others = _family(file, names)
    wanted = int(number) + step
    if wanted in others:
        return file.beside(others[wanted])
    if any((other - wanted) * step > 0 for other in others):
        lost = f"{file.folder}/{before}{wanted:0{len(number)}}{behind}"
        raise SourceError(
            f"{lost}: the file is not there, and others of its set with numbers on either side "
            "are: documents go on from file to file. Copy it again."
        )
    return None
