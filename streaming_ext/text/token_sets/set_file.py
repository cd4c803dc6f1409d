"""Files of token sets, local or remote, the files next to them, and the ids that they hold."""

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
    """A file of a token set.

    Attributes:
        name: the path or URL of the file.
        data: the bytes of the file.
        state: a value that changes with the bytes.
    """

    name: str
    data: SourceBytes = field(compare=False, repr=False)
    state: Hashable = None

    @property
    def folder(self) -> str:
        """Path or URL of the folder of the file."""
        return self.name.rpartition("/")[0]

    @property
    def key(self) -> str:
        """Name of the file in its folder."""
        return self.name.rpartition("/")[2]

    @property
    def size(self) -> int:
        """Size in bytes.

        Raises:
            SourceError: the file is missing, or cannot be read.
        """
        return self.data.size

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Read the bytes [start, end), by default all.

        Raises:
            SourceError: the file is missing, too short, or cannot be read.
            StorageError: a server refuses or does not answer.
        """
        return self.data.read(start, self.size if end is None else end)

    def companion(self, key: str) -> "SetFile":
        """Open another file of the same folder, which must exist."""
        found = open_in(self.folder, key)
        if found is None:
            raise UsageError(
                f"{self.name}: there is no {key} next to it. Copy it too, or name another format."
            )
        return found

    def folders(self) -> Iterator[str]:
        """Yield each folder that contains the file, the nearest first.

        The last folder of a remote file is its dataset or bucket.
        """
        scheme, remote, path = self.name.rpartition("://")
        least = 0 if not remote else 3 if scheme == "hf" else 1  # datasets/ORG/NAME, or the bucket
        names = path.split("/")
        for depth in range(len(names) - 1, least - 1, -1):
            yield f"{scheme}{remote}{'/'.join(names[:depth])}" or "/"


def open_in(folder: str, key: str) -> SetFile | None:
    """Open a file of a folder, or of a folder below it; None if there is none."""
    if "://" not in folder:
        path = Path(folder, key)
        return local_file(path) if path.is_file() else None
    found = _remote_files(folder).get(key)
    return None if found is None else _opened(found)


def local_file(path: Path) -> SetFile:
    """Open a file on this machine."""
    status = path.stat()
    return _opened(SourceFile(url=str(path), size=status.st_size, modified=status.st_mtime_ns))


def _opened(source: SourceFile) -> SetFile:
    state = (source.version, source.modified, source.size)
    return SetFile(source.url, SourceFileBytes(source), state)


def holds(folder: str, key: str) -> bool:
    """Return whether a folder holds a file, with as short a listing as possible."""
    if "://" not in folder:
        return Path(folder, key).is_file()
    if folder.startswith("hf://"):  # the Hub lists whole folders
        return key in _remote_files(folder)
    return key in _objects(folder, key)


def names_in(folder: str) -> Iterable[str]:
    """List the files in a folder; for a remote folder also the files below, with `/` between."""
    if "://" in folder:
        return _remote_files(folder)
    try:
        return [file.name for file in Path(folder).iterdir()]
    except OSError as error:
        raise SourceError(f"{folder}: cannot be read: {error.strerror}.") from error


@lru_cache(64)
def _remote_files(folder: str) -> Mapping[str, SourceFile]:
    """List all files in a remote folder and below it, by their names in the folder.

    Each entry names the version that was listed, so a kept listing is never stale: reading a file
    that changed since is an error.
    """
    if not folder.startswith("hf://"):
        return _objects(folder, "")
    from streaming_ext.text.sources.hub import list_files

    found = list_files(f"{folder}/", lambda name: True)
    return {source.url.removeprefix(f"{folder}/"): source for source in found}


def _objects(folder: str, prefix: str) -> dict[str, SourceFile]:
    """List the objects below a folder whose names in the folder begin with a prefix."""
    bucket, key = bucket_of(folder)
    base = f"{key}/" if key else ""
    found = list_prefix(bucket, f"{base}{prefix}")
    return {key.removeprefix(base): source for key, source in found.items()}


@lru_cache(64)
def pin_of(folder: str, keys: tuple[str, ...]) -> str:
    """Return a pin that changes with the bytes of these files, and if one appears or disappears."""
    files = [(key, open_in(folder, key)) for key in keys]
    states = [f"{key} {file.state}" for key, file in files if file is not None]
    return content_hash("\n".join(states).encode())


def forget_listings() -> None:
    """Forget the listings of remote folders, so that they are listed anew."""
    _remote_files.cache_clear()
    pin_of.cache_clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class IdsOfFile:
    """The ids of an open file.

    Attributes:
        count: the number of ids.
        read: a function that returns the ids [start, end).
        starts: the positions at which documents begin, ascending, if the format states them.
        head: the number of bytes before the first id, if ids lie back to back in the file.
        itemsize: the number of bytes per id, if ids lie back to back in the file.
    """

    count: int
    read: Callable[[int, int], Ids]
    starts: Ints | None = None
    head: int = 0
    itemsize: int = 1

    def within(self, span: Span | None) -> tuple[int, int]:
        """Return the ids [first, last) that begin in a span of the file, by default all."""
        if span is None:
            return 0, self.count
        first, last = (ceil_div(max(byte - self.head, 0), self.itemsize) for byte in span)
        return min(first, self.count), min(last, self.count)

    def begins(self, position: int) -> bool:
        """Return whether the format states that a document begins with this id."""
        return len(self.starts_within(position, position + 1)) > 0

    def starts_within(self, start: int, end: int) -> Ints:
        """Return the positions in [start, end) at which documents begin, as the format states."""
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
    """Open a file whose ids lie back to back after a head, to its end.

    Args:
        file: the file.
        dtype: the type of its ids.
        head: the number of bytes before the first id.
        starts: see `IdsOfFile`.
        count: the number of ids, if the format states it.

    Raises:
        SourceError: the file has another size, or no whole number of ids.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    size = file.size - head
    if count is None:
        count = size // kind.itemsize
    if size < 0 or size != count * kind.itemsize:
        file.read(0, min(file.size, MOST_POINTER_BYTES))  # raises an error for a Git LFS pointer
        raise SourceError(
            f"{file.name}: {file.size:,} bytes, expected a head of {head:,} and {count:,} "
            f"ids of type {kind.name}. It or its index is cut short, or its ids have another type "
            "(--dtype)."
        )

    def read(start: int, end: int) -> Ids:
        first, last = (head + position * kind.itemsize for position in (start, end))
        return np.frombuffer(file.read(first, last), kind)

    return IdsOfFile(count=count, read=read, starts=starts, head=head, itemsize=kind.itemsize)
