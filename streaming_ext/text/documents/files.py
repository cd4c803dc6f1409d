"""A source file's bytes, wherever it lies: read in ranges, or as libraries want them."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from streaming_ext.base.errors import SourceError, reason_of

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


@dataclass(frozen=True, slots=True)
class LocalBytes:
    """A file on this machine; see `SourceBytes`. `name` is what messages call it."""

    path: Path
    name: str

    @property
    def size(self) -> int:
        """In bytes.

        Raises:
            SourceError: it is missing, or cannot be read.
        """
        with self._open() as file:
            return os.fstat(file.fileno()).st_size

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end).

        Raises:
            SourceError: the file is missing, shorter than it was, or cannot be read.
        """
        with self._open() as file:
            file.seek(start)
            data = file.read(end - start)
        if len(data) < end - start:
            raise SourceError(f"{self.name}: became shorter while it was read. Run again.")
        return data

    @contextmanager
    def _open(self) -> Iterator[io.BufferedReader]:
        try:
            with self.path.open("rb") as file:
                yield file
        except OSError as error:
            raise SourceError(f"{self.name}: cannot be read: {reason_of(error)}.") from error


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
