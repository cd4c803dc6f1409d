"""A file of a token set, here or where its set lies, and the files that lie beside it there."""

import os
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol

from streaming_ext.base.errors import SourceError
from streaming_ext.format.schema import content_hash
from streaming_ext.text.documents.files import SourceBytes


class Folder(Protocol):
    """Where files of a set lie; names are below it, with `/` between."""

    def __hash__(self) -> int: ...

    def open(self, name: str) -> "SetFile | None":
        """A file; None where there is none."""
        ...

    def holds(self, name: str) -> bool:
        """Whether there is such a file; asks for little."""
        ...

    def names(self) -> Iterable[str]:
        """The files in it, and perhaps those below."""
        ...

    def above(self) -> "Folder | None":
        """The folder that it lies in."""
        ...


@dataclass(frozen=True, slots=True)
class SetFile:
    """One file.

    Attributes:
        name: what messages call it: a path or a URL.
        key: its name in its folder.
        folder: that it lies in.
        data: its bytes.
        state: what changes with them.
    """

    name: str
    key: str = field(compare=False)
    folder: Folder = field(compare=False, repr=False)
    data: SourceBytes = field(compare=False, repr=False)
    state: Hashable = None

    @property
    def size(self) -> int:
        """In bytes.

        Raises:
            SourceError: it is gone, or cannot be read.
        """
        return self.data.size

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end).

        Raises:
            SourceError: it is gone, shorter, or cannot be read.
            StorageError: a server refuses or does not answer.
        """
        return self.data.read(start, end)

    def whole(self) -> bytes:
        """All of its bytes; raises what `read` does."""
        return self.data.read(0, self.data.size)

    def beside(self, key: str) -> "SetFile | None":
        """A file of its folder; None where there is none."""
        return self.folder.open(key)

    def folders(self) -> "Iterator[tuple[Folder, str]]":
        """Each folder that it lies in, the nearest first, with its name from there."""
        folder: Folder | None = self.folder
        names = self.name.replace(os.sep, "/").split("/")
        depth = 1
        while folder is not None:
            yield folder, "/".join(names[-depth:])
            folder, depth = folder.above(), depth + 1


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """Bytes on this machine; `name` is what messages call the file."""

    path: Path
    name: str

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError as error:
            raise SourceError(f"{self.name}: the file is gone.") from error
        except OSError as error:
            raise SourceError(f"{self.name}: cannot be read: {error.strerror}.") from error

    def read(self, start: int, end: int) -> bytes:
        try:
            with self.path.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), end - start, start)
                while len(data) < end - start:
                    more = os.pread(file.fileno(), end - start - len(data), start + len(data))
                    if not more:
                        raise SourceError(
                            f"{self.name}: became shorter while it was read. Run again."
                        )
                    data += more
        except FileNotFoundError as error:
            raise SourceError(f"{self.name}: the file is gone.") from error
        except OSError as error:
            raise SourceError(f"{self.name}: cannot be read: {error.strerror}.") from error
        return data


@dataclass(frozen=True, slots=True)
class _FolderHere:
    path: Path

    def open(self, name: str) -> SetFile | None:
        file = self.path / name
        return _here(file, str(file)) if file.is_file() else None

    def holds(self, name: str) -> bool:
        return (self.path / name).is_file()

    def names(self) -> list[str]:
        try:
            return [file.name for file in self.path.iterdir()]
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read: {error.strerror}.") from error

    def above(self) -> "_FolderHere | None":
        return None if self.path.parent == self.path else _FolderHere(self.path.parent)

    def __str__(self) -> str:
        return str(self.path)


def _here(path: Path, name: str) -> SetFile:
    try:
        status = path.stat()
        state = (status.st_mtime_ns, status.st_size)
    except OSError:  # said when it is read
        state = (0, 0)
    return SetFile(name, path.name, _FolderHere(path.parent), _OnDisk(path, name), state)


class _Elsewhere:
    """A folder of an object store or of the Hub."""

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, name: str) -> SetFile | None:
        from streaming_ext.text.sources.source_bytes import SourceFileBytes
        from streaming_ext.text.token_sets.files.listed import files_in

        found = files_in(self._url).get(name)
        if found is None:
            return None
        folder, _, key = found.url.rpartition("/")
        return SetFile(
            found.url, key, folder_of(folder), SourceFileBytes(found), (found.version, found.size)
        )

    def holds(self, name: str) -> bool:
        from streaming_ext.text.token_sets.files.listed import is_in

        return is_in(self._url, name)

    def names(self) -> Iterable[str]:
        from streaming_ext.text.token_sets.files.listed import files_in

        return files_in(self._url)

    def above(self) -> "_Elsewhere | None":
        scheme, _, place = self._url.partition("://")
        least = 3 if scheme == "hf" else 1  # datasets/ORG/NAME, or the bucket
        names = place.split("/")
        return None if len(names) <= least else folder_of(self._url.rpartition("/")[0])

    def __str__(self) -> str:
        return self._url


@cache
def folder_of(url: str) -> _Elsewhere:
    """A folder that does not lie on this machine."""
    return _Elsewhere(url)


@lru_cache(64)
def pin_of(folder: Folder, names: tuple[str, ...]) -> str:
    """What changes with the files of these names, with which there are, and with their bytes."""
    found = ((name, folder.open(name)) for name in names)
    told = [f"{name} {file.state}" for name, file in found if file is not None]
    return content_hash("\n".join(told).encode())


@lru_cache(64)
def pin_of_all(folder: Folder, suffixes: tuple[str, ...]) -> str:
    """The same for all files of a folder whose names end so, but not for those below it."""
    return pin_of(
        folder,
        tuple(sorted(n for n in folder.names() if n.endswith(suffixes) and "/" not in n)),
    )


def forget_listings() -> None:
    """Have folders that do not lie on this machine listed anew."""
    from streaming_ext.text.token_sets.files.listed import forget

    forget()
    pin_of.cache_clear()
    pin_of_all.cache_clear()


def set_file(path: Path, name: str) -> SetFile:
    """A file whose bytes lie at a path; files beside it lie there too, or beside its URL."""
    if "://" not in name:
        return _here(path, name)
    folder, _, key = name.rpartition("/")
    return SetFile(name, key, folder_of(folder), _OnDisk(path, name))


def set_file_of(file: SourceBytes) -> SetFile:
    """A file that need not be here."""
    if "://" not in file.name:
        return _here(Path(file.name), file.name)
    folder, _, key = file.name.rpartition("/")
    return SetFile(file.name, key, folder_of(folder), file)
