"""A source file's bytes, wherever it lies: read in ranges, or as libraries want them."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from streaming_ext.base.errors import SourceError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Span = tuple[int, int]  # [start, end)
_REQUEST_BYTES = 2**20  # of a file that is not on this machine


class SourceBytes(Protocol):
    """A source file: its name in messages, its size in bytes, and any range of its bytes."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    def read(self, start: int, end: int) -> bytes: ...


class LocalBytes:
    """An open file on this machine; see `SourceBytes`."""

    def __init__(self, path: Path, descriptor: int, name: str) -> None:
        self.path, self.name, self._descriptor = path, name, descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end).

        Raises:
            SourceError: the file is shorter than it was, or cannot be read.
        """
        chunks = []
        while start < end:
            try:
                data = os.pread(self._descriptor, end - start, start)
            except OSError as error:
                raise SourceError(f"{self.name}: cannot be read: {error.strerror}.") from error
            if not data:
                raise SourceError(f"{self.name}: became shorter while it was read. Run again.")
            chunks.append(data)
            start += len(data)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


@contextmanager
def local_bytes(path: Path, *, name: str) -> Iterator[LocalBytes]:
    """Open a file; `name` is what messages call it.

    Raises:
        SourceError: it is missing, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SourceError(f"{name}: the file is gone.") from error
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}.") from error
    try:
        yield LocalBytes(path, descriptor, name)
    finally:
        os.close(descriptor)


class SeekableBytes(io.RawIOBase):
    """A source file as libraries want it: one that can be sought in."""

    def __init__(self, file: SourceBytes) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}
        self._at = offset + base[whence]
        return self._at

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill a buffer with the next bytes."""
        view = memoryview(buffer)
        end = max(self._at, min(self._at + len(view), self._file.size))
        data = self._file.read(self._at, end) if end > self._at else b""
        view[: len(data)] = data
        self._at = end
        return len(data)


def open_buffered(file: SourceBytes, request_bytes: int = _REQUEST_BYTES) -> io.BufferedReader:
    """A file for Python's libraries."""
    if isinstance(file, LocalBytes):
        return file.path.open("rb")
    return io.BufferedReader(SeekableBytes(file), request_bytes)


def open_for_arrow(file: SourceBytes, request_bytes: int = _REQUEST_BYTES) -> pa.NativeFile:
    """A file for Arrow's readers."""
    if isinstance(file, LocalBytes):
        return pa.OSFile(str(file.path))
    return pa.PythonFile(open_buffered(file, request_bytes), mode="r")
