"""Source files as bytes, wherever they lie: read in ranges, or as a stream of their content.

A stream is unpacked, read in order, and never in memory as a whole.
"""

import bz2
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import pyarrow as pa

from streaming_ext.base.errors import SourceError, one_line, reason_of
from streaming_ext.base.git_lfs import MOST_POINTER_BYTES, not_a_pointer

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Span = tuple[int, int]  # [start, end)
_REQUEST_BYTES = 2**20  # per request for a file that is not on this machine


class SourceBytes(Protocol):
    """A source file: its name in messages, its size in bytes, and any range of its bytes."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    def read(self, start: int, end: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class LocalBytes:
    """A file on this machine; see `SourceBytes`. Messages call it `name`."""

    path: Path
    name: str

    @property
    def size(self) -> int:
        """Size in bytes.

        Raises:
            SourceError: the file is missing, or cannot be read.
        """
        with self.open() as file:
            return os.fstat(file.fileno()).st_size

    def read(self, start: int, end: int) -> bytes:
        """Read the bytes [start, end).

        Raises:
            SourceError: the file is missing, shorter than it was, or cannot be read.
        """
        with self.open() as file:
            file.seek(start)
            data = file.read(end - start)
        if len(data) < end - start:
            raise SourceError(f"{self.name}: became shorter while it was read. Run again.")
        return data

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """Open the file, to read from its start; see `read`.

        Raises:
            UsageError: the file is a pointer of Git LFS.
        """
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size <= MOST_POINTER_BYTES:
                    not_a_pointer(file.peek(), self.name)
                yield file
        except OSError as error:
            raise SourceError(f"{self.name}: cannot be read: {reason_of(error)}.") from error


class _RawFile(io.RawIOBase):
    """A file whose `read` returns the next bytes."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill a buffer with the next bytes."""
        view = memoryview(buffer)
        data = self.read(len(view)) or b""
        view[: len(data)] = data
        return len(data)


class SeekableBytes(_RawFile):
    """A source file in which libraries can seek."""

    def __init__(self, file: SourceBytes) -> None:
        self._file, self._at = file, 0

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}
        self._at = offset + base[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes."""
        start, left = self._at, max(self._file.size - self._at, 0)
        self._at += min(size, left) if size >= 0 else left
        return self._file.read(start, self._at) if self._at > start else b""


def open_buffered(file: SourceBytes, request_bytes: int = _REQUEST_BYTES) -> io.BufferedReader:
    """Open a file for Python's libraries."""
    if isinstance(file, LocalBytes):
        with file.open():  # checks that it can be read
            return file.path.open("rb")
    return io.BufferedReader(SeekableBytes(file), request_bytes)


def open_for_arrow(file: SourceBytes, request_bytes: int = _REQUEST_BYTES) -> pa.NativeFile:
    """Open a file for Arrow's readers."""
    if isinstance(file, LocalBytes):
        with file.open():
            return pa.OSFile(str(file.path))
    return pa.PythonFile(open_buffered(file, request_bytes), mode="r")


CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz", ".lz4": "lz4"}
_WRITTEN_AS_ONE = {".tgz": "gzip"}  # `.tar.gz`
_PACKED_BYTES = 2**20  # that are read at once of a file of members
_LARGEST_GROWTH = 200  # bytes per byte of file: text gives 2 to 10, logs 50
_ALWAYS_ALLOWED_BYTES = 2**28  # a text of the largest size, however well it packs
_CHUNK_BYTES = 2**23  # that are unpacked at once
_WORTH_A_THREAD = 2**20  # bytes of a chunk, at least, to unpack the next one in a thread


class _GzipMember:
    """A decompressor of a gzip member, with the interface of those of `bz2` and `lzma`."""

    def __init__(self) -> None:
        self._member, self._left, self.needs_input = zlib.decompressobj(31), b"", True

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        unpacked = self._member.decompress(self._left + data, max_length)
        self._left = self._member.unconsumed_tail
        self.needs_input = not self._left and len(unpacked) < max_length
        return unpacked


Member = _GzipMember | lzma.LZMADecompressor | bz2.BZ2Decompressor
_MEMBERS: dict[str, Callable[[], Member]] = {
    "gzip": _GzipMember,
    "xz": lzma.LZMADecompressor,
    "bz2": bz2.BZ2Decompressor,
}


def codec_of(name: str) -> str:
    """Return the codec of a packed file, by the end of its name; `none` if it is not packed."""
    known = CODECS | _WRITTEN_AS_ONE
    return next((codec for suffix, codec in known.items() if name.endswith(suffix)), "none")


def packed_suffixes(*plain: str) -> tuple[str, ...]:
    """Return these suffixes, alone and followed by the suffix of each codec."""
    return tuple(f"{suffix}{packed}" for suffix in plain for packed in ("", *CODECS))


class EndOfHeadError(Exception):
    """Raised at the end of the bytes that a look reads of a longer stream."""


class Stream(_RawFile):
    """The content of a file in order, unpacked as its name says; Python's libraries can read it.

    While one chunk is used, a thread unpacks the next, which takes about as long.

    Attributes:
        file: the source file.
        origin: the position of the stream's first byte in the unpacked file.
        position: the number of bytes read.
        most: the number of bytes that may come in all.
    """

    def __init__(
        self, file: SourceBytes, *, span: Span | None = None, head: int | None = None
    ) -> None:
        """Open a file.

        Args:
            file: the file to read.
            span: the only bytes to read, of a file that is not packed.
            head: the number of bytes to look at; in a longer stream, `EndOfHeadError` follows.

        Raises:
            SourceError: the file is gone, or is empty although its name says that it is packed.
        """
        self.file, self.position, self._head, self._raw = file, 0, head, open_buffered(file)
        self.origin, self._end = span or (0, file.size)
        self._raw.seek(self.origin)
        self._thread = ThreadPoolExecutor(1, "read ahead")
        self._next: Future[bytes] | None = None
        self.most = _LARGEST_GROWTH * file.size + _ALWAYS_ALLOWED_BYTES
        self._item = float("inf")
        codec = codec_of(file.name)
        if codec != "none" and not file.size:
            raise SourceError(f"{file.name}: an empty file, which no packed file is.")
        self._unpack: Callable[[], bytes] | None = None
        if codec in _MEMBERS:
            members = _unpacked_members(self._raw, _MEMBERS[codec])
            self._unpack = partial(next, members, b"")
        elif codec != "none":
            unpacked = pa.CompressedInputStream(pa.PythonFile(self._raw, mode="r"), codec)
            self._unpack = partial(unpacked.read, _CHUNK_BYTES)
        self._chunk, self._used = b"", 0

    @property
    def fraction(self) -> float:
        """Fraction of the file or span that is read, in [0, 1]."""
        if self._raw.closed:  # a buffered reader of the stream closes it at the end
            return 1.0
        return min(1.0, (self._raw.tell() - self.origin) / max(self._end - self.origin, 1))

    def allow(self, most: int) -> None:
        """Allow at most this many bytes from here on, until the next call."""
        self._item = most

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self.position

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes, at most `size`, by default all; none come at the end.

        Raises:
            EndOfHeadError: the whole head was read.
            SourceError: the file is damaged, cut short, or made to fill a disk; or more bytes come
                than are allowed.
        """
        if size < 0:
            return self.readall()
        if self._head is not None:
            size = min(size, self._head - self.position)
            if not size:
                raise EndOfHeadError
        try:
            data = self._read(size)
        except (OSError, EOFError, lzma.LZMAError, zlib.error, pa.ArrowException) as error:
            raise SourceError(
                f"{self.file.name}: damaged or cut short ({one_line(error)}). Fetch it again, or "
                "leave it out."
            ) from error
        self.position += len(data)
        self._item -= len(data)
        if self.position > self.most:
            raise SourceError(
                f"{self.file.name}: it unpacks to more than {_LARGEST_GROWTH} times its bytes and "
                f"{_ALWAYS_ALLOWED_BYTES >> 20} MiB: it is made to fill a disk. Leave it out."
            )
        if self._item < 0:
            raise SourceError(
                f"{self.file.name}: a document of too many bytes. Leave the file out."
            )
        return data

    def _read(self, size: int) -> bytes:
        """Read the next bytes; a packed file gives a chunk's rest, or the beginning of the next."""
        if self._unpack is None:
            return self._raw.read(min(size, self._end - self.origin - self.position))
        if self._used == len(self._chunk):
            self._chunk, self._used = self._next.result() if self._next else self._unpack(), 0
            ahead = self._head is None and len(self._chunk) >= _WORTH_A_THREAD
            self._next = self._thread.submit(self._unpack) if ahead else None
        data = self._chunk[self._used : self._used + size]
        self._used += len(data)
        return data

    def close(self) -> None:
        """End the thread, then close the file."""
        if not self.closed:
            self._thread.shutdown(cancel_futures=True)
            self._raw.close()
        super().close()


def head_of(file: SourceBytes, size: int) -> bytes:
    """Return the first `size` bytes of a file, unpacked; all if there are fewer."""
    with Stream(file, head=size) as stream:
        return io.BufferedReader(stream, size).read(size)


def _unpacked_members(raw: BinaryIO, begin: Callable[[], Member]) -> Iterator[bytes]:
    """Yield the content of the members of a file, one after another.

    Python's own readers treat any bytes that are not a member as the end of the file. Arrow's
    refuses an empty member of bz2, and zeros after a member of gzip.
    """
    data = raw.read(_PACKED_BYTES)
    while data:
        member = begin()
        while not member.eof:
            if member.needs_input and not (data := data or raw.read(_PACKED_BYTES)):
                raise EOFError("it ends within a member")
            if unpacked := member.decompress(data, max_length=_CHUNK_BYTES):
                yield unpacked
            data = b""
        data = member.unused_data or raw.read(_PACKED_BYTES)
        while data and not (data := data.lstrip(b"\0")):  # members may be padded with zeros
            data = raw.read(_PACKED_BYTES)
