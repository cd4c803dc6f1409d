"""A file of a token set, local or remote, the files next to it, and the ids that it holds."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints, ceil_div
from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.base.git_lfs import MOST_POINTER_BYTES
from streaming_ext.format.schema import content_hash
from streaming_ext.text.documents.files import SourceBytes, Span
from streaming_ext.text.sources.objects import bucket_of, list_prefix
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from streaming_ext.text.sources.source_file import SourceFile

Ids = npt.NDArray[Any]  # of any type of whole numbers


@dataclass(frozen=True, slots=True)
class SetFile:
    """One file.

    Attributes:
        name: the path or URL of the file.
        data: the bytes of the file.
        state: changes with them.
    """

    name: str
    data: SourceBytes = field(compare=False, repr=False)
    state: Hashable = None

    @property
    def folder(self) -> str:
        """The path or URL of its folder."""
        return self.name.rpartition("/")[0]

    @property
    def key(self) -> str:
        """Its name in its folder."""
        return self.name.rpartition("/")[2]

    @property
    def size(self) -> int:
        """In bytes.

        Raises:
            SourceError: it is missing, or cannot be read.
        """
        return self.data.size

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """The bytes [start, end), by default all.

        Raises:
            SourceError: it is missing, shorter, or cannot be read.
            StorageError: a server refuses or does not answer.
        """
        return self.data.read(start, self.size if end is None else end)

    def companion(self, key: str) -> "SetFile":
        """Another file of its folder, which must exist."""
        found = open_in(self.folder, key)
        if found is None:
            raise UsageError(
                f"{self.name}: there is no {key} next to it. Copy it too, or name another format."
            )
        return found

    def folders(self) -> Iterator[str]:
        """Each folder that contains it, the nearest first; of a remote file those of its dataset
        or bucket.
        """
        scheme, remote, path = self.name.rpartition("://")
        least = 0 if not remote else 3 if scheme == "hf" else 1  # datasets/ORG/NAME, or the bucket
        names = path.split("/")
        for depth in range(len(names) - 1, least - 1, -1):
            yield f"{scheme}{remote}{'/'.join(names[:depth])}" or "/"


def open_in(folder: str, key: str) -> SetFile | None:
    """A file of a folder, or of a folder below it; None if there is none."""
    if "://" not in folder:
        path = Path(folder, key)
        return local_file(path) if path.is_file() else None
    found = _remote_files(folder).get(key)
    return None if found is None else _opened(found)


def local_file(path: Path) -> SetFile:
    """A file on this machine."""
    status = path.stat()
    return _opened(SourceFile(url=str(path), size=status.st_size, modified=status.st_mtime_ns))


def _opened(source: SourceFile) -> SetFile:
    state = (source.version, source.modified, source.size)
    return SetFile(source.url, SourceFileBytes(source), state)


def holds(folder: str, key: str) -> bool:
    """Say whether a folder holds a file; lists little."""
    if "://" not in folder:
        return Path(folder, key).is_file()
    if folder.startswith("hf://"):  # the Hub lists whole folders
        return key in _remote_files(folder)
    return key in _objects(folder, key)


def names_in(folder: str) -> Iterable[str]:
    """The files in a folder; of a remote one also those below, with `/` between."""
    if "://" in folder:
        return _remote_files(folder)
    try:
        return [file.name for file in Path(folder).iterdir()]
    except OSError as error:
        raise SourceError(f"{folder}: cannot be read: {error.strerror}.") from error


@lru_cache(64)
def _remote_files(folder: str) -> Mapping[str, SourceFile]:
    """All files in a remote folder and below it, by their names there.

    Each names the version that was listed, so a kept listing is never stale: reading a file that
    changed since is an error.
    """
    if not folder.startswith("hf://"):
        return _objects(folder, "")
    from streaming_ext.text.sources.hub import list_files

    found = list_files(f"{folder}/", lambda name: True)
    return {source.url.removeprefix(f"{folder}/"): source for source in found}


def _objects(folder: str, prefix: str) -> dict[str, SourceFile]:
    """The objects below a folder whose names there begin with a prefix."""
    bucket, key = bucket_of(folder)
    base = f"{key}/" if key else ""
    found = list_prefix(bucket, f"{base}{prefix}")
    return {key.removeprefix(base): source for key, source in found.items()}


@lru_cache(64)
def pin_of(folder: str, keys: tuple[str, ...]) -> str:
    """Changes with the bytes of these files, and with which of them exist."""
    files = [(key, open_in(folder, key)) for key in keys]
    states = [f"{key} {file.state}" for key, file in files if file is not None]
    return content_hash("\n".join(states).encode())


def forget_listings() -> None:
    """List remote folders anew from now on."""
    _remote_files.cache_clear()
    pin_of.cache_clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class IdsOfFile:
    """The ids of an open file.

    Attributes:
        count: number of ids.
        read: gives the ids [start, end).
        starts: the positions at which documents begin, ascending, if the format says them.
        head: bytes before the first id, and
        itemsize: bytes of each, if ids lie back to back in the file.
    """

    count: int
    read: Callable[[int, int], Ids]
    starts: Ints | None = None
    head: int = 0
    itemsize: int = 1

    def within(self, span: Span | None) -> tuple[int, int]:
        """The ids [first, last) that begin in some bytes of the file, by default all."""
        if span is None:
            return 0, self.count
        first, last = (ceil_div(max(byte - self.head, 0), self.itemsize) for byte in span)
        return min(first, self.count), min(last, self.count)

    def begins(self, position: int) -> bool:
        """Say whether a document begins with this id, as the format says."""
        return len(self.starts_within(position, position + 1)) > 0

    def starts_within(self, start: int, end: int) -> Ints:
        """Positions in [start, end) at which documents begin, as the format says."""
        if self.starts is None:
            return np.empty(0, np.int64)
        first, last = np.searchsorted(self.starts, [start, end])
        return self.starts[first:last]


def raw_ids(
    file: SetFile,
    dtype: str,
    *,
    head: int = 0,
    starts: Ints | None = None,
    count: int | None = None,
) -> IdsOfFile:
    """A file whose ids lie back to back after a head, to its end.

    Args:
        file: the file.
        dtype: type of its ids.
        head: bytes before the first one.
        starts: see `IdsOfFile`.
        count: number of ids as the format says it, if it does.

    Raises:
        SourceError: its size is another one, or no whole number of ids.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    size = file.size - head
    if count is None:
        count = size // kind.itemsize
    if size < 0 or size != count * kind.itemsize:
        file.read(0, min(file.size, MOST_POINTER_BYTES))  # raises an error for a pointer
        raise SourceError(
            f"{file.name}: {file.size:,} bytes, expected a head of {head:,} and {count:,} "
            f"ids of type {kind.name}. It or its index is cut short, or its ids have another type "
            "(--dtype)."
        )

    def read(start: int, end: int) -> Ids:
        first, last = (head + position * kind.itemsize for position in (start, end))
        return np.frombuffer(file.read(first, last), kind)

    return IdsOfFile(count=count, read=read, starts=starts, head=head, itemsize=kind.itemsize)
