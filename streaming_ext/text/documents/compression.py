"""Compressed source files: streams of what is in them, read in order and never whole."""

import bz2
import lzma
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import BinaryIO, Protocol, TypeVar

import pyarrow as pa

from streaming_ext.errors import SourceError, one_line
from streaming_ext.text.documents.source_format import SeekableBytes, SourceBytes

CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz", ".lz4": "lz4"}
_WRITTEN_AS_ONE = {".tgz": "gzip"}  # `.tar.gz`
_REQUEST_BYTES = 2**20  # of a file that is not here
_PACKED_BYTES = 2**17  # that are taken from a file at once
_LARGEST_GROWTH = 200  # bytes for a byte of file: text gives 2 to 10, logs 50
_CHUNK_BYTES = 2**22  # read ahead at once
_CHUNKS = 6  # that wait to be used, beside one in hand
_POLL_SECONDS = 0.2
_ALWAYS_ALLOWED_BYTES = 2**28  # a text of the largest size, however well it packs


Item = TypeVar("Item")


class Stream(Protocol):
    """What documents are read from.

    Attributes:
        start: of the piece of the file that it is of; 0 for a whole one.
        origin: byte of the unpacked file that it begins with.
    """

    start: int
    origin: int

    def read(self, size: int) -> bytes:
        """The next bytes, none at the end."""
        ...


class _Head:
    """The beginning of a stream; `cut` where more was asked for, and there was."""

    start: int = 0
    origin: int = 0

    def __init__(self, stream: Stream, size: int) -> None:
        self._stream, self._left = stream, size
        self.cut = False

    def read(self, size: int) -> bytes:
        if not self._left:
            self.cut = self.cut or bool(self._stream.read(1))
            return b""
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data


def whole_in_head(
    items: Callable[[Stream], Iterable[Item]], stream: Stream, *, size: int = 2**20
) -> Iterator[Item]:
    """What lies whole in the first bytes of a stream: a look reads no large document.

    Args:
        items: of a stream, read one by one.
        stream: from its beginning.
        size: in bytes, unpacked.

    Raises:
        SourceError: the stream is damaged or cut short there.
    """
    head = _Head(stream, size)
    try:
        yield from items(head)
    except SourceError:
        if not head.cut:
            raise


def codec_of(name: str) -> str:
    """How a file is packed, by the end of its name; `none` where it is not."""
    known = CODECS | _WRITTEN_AS_ONE
    return next((codec for suffix, codec in known.items() if name.endswith(suffix)), "none")


def packed_suffixes(*plain: str) -> tuple[str, ...]:
    """These suffixes, and each with that of every codec behind it."""
    return tuple(f"{suffix}{packed}" for suffix in plain for packed in ("", *CODECS))


class _Members:
    """What members of a packed file hold, one after another; all of the file must be members.

    Args:
        raw: the file.
        begin: what unpacks a member.
        padded: whether zeros may stand behind members, in multiples of four.
    """

    def __init__(
        self,
        raw: BinaryIO,
        begin: Callable[[], lzma.LZMADecompressor | bz2.BZ2Decompressor],
        *,
        padded: bool,
    ) -> None:
        self._raw, self._begin, self._padded = raw, begin, padded
        self._member, self._rest, self._ended = begin(), b"", False

    def read(self, size: int) -> bytes:
        """The next bytes, as many unless they end.

        Raises:
            lzma.LZMAError, OSError: something stands there that is no member.
            EOFError: the last member is cut short.
        """
        pieces: list[bytes] = []
        while size and not self._ended:
            if self._member.eof:
                self._next()
                continue
            packed = b""
            if self._member.needs_input:
                packed, self._rest = self._rest or self._raw.read(_PACKED_BYTES), b""
                if not packed:
                    raise EOFError("it ends within a member")
            pieces.append(self._member.decompress(packed, max_length=size))
            size -= len(pieces[-1])
        return b"".join(pieces)

    def _next(self) -> None:
        """Begin the member behind one that has ended, if there is another."""
        zeros, rest = 0, self._member.unused_data
        while rest or (rest := self._raw.read(_PACKED_BYTES)):
            self._rest = rest.lstrip(b"\0") if self._padded else rest
            zeros += len(rest) - len(self._rest)
            rest = b""
            if self._rest:
                break
        if zeros % 4:
            raise EOFError(f"{zeros} zeros behind a member, where they come in fours")
        self._member, self._ended = self._begin(), not self._rest


class ReadAhead:
    """Unpacking goes on while what is unpacked is used: both take about one core's time.

    It begins with the thread only when so much was asked for that it is worth one.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._chunks: Queue[bytes | BaseException] = Queue(_CHUNKS)
        self._rest = b""
        self._used = 0
        self._ended = False
        self._error: BaseException | None = None
        self._stop = Event()
        self._thread: Thread | None = None

    def read(self, size: int) -> bytes:
        """The next bytes, none at the end; raises what reading raised."""
        if self._thread is None and self._used < _CHUNK_BYTES:
            data = self._read(size)
            self._used += len(data)
            return data
        if self._thread is None:
            self._thread = Thread(target=self._run, name="read ahead", daemon=True)
            self._thread.start()
        pieces, have = [self._rest], len(self._rest)
        while have < size and not self._ended:
            chunk = self._chunks.get()
            if isinstance(chunk, BaseException):
                self._ended, self._error = True, chunk
                break
            self._ended = not chunk
            pieces.append(chunk)
            have += len(chunk)
        if not have and self._error is not None:
            raise self._error
        data = b"".join(pieces) if len(pieces) > 1 else pieces[0]
        data, self._rest = (data[:size], data[size:]) if have > size else (data, b"")
        return data

    def _run(self) -> None:
        while not self._stop.is_set():
            chunk: bytes | BaseException
            try:
                chunk = self._read(_CHUNK_BYTES)
            except BaseException as error:  # noqa: BLE001 - raised where it is read
                chunk = error
            while not self._stop.is_set():
                try:
                    self._chunks.put(chunk, timeout=_POLL_SECONDS)
                    break
                except Full:
                    continue
            if not chunk or isinstance(chunk, BaseException):
                return

    def close(self) -> None:
        """End the thread, before what it reads is closed."""
        self._stop.set()
        while self._thread is not None and self._thread.is_alive():
            try:
                self._chunks.get_nowait()  # it may wait for room
            except Empty:
                self._thread.join(_POLL_SECONDS)


class PlainStream:
    """The content of a file, unpacked; knows how much of the file it has used."""

    start: int = 0
    origin: int = 0

    def __init__(self, raw: BinaryIO, size: int, name: str, *, ahead: bool = False) -> None:
        self._raw, self._size, self._name = raw, size, name
        codec = codec_of(name)
        self._packed = codec != "none"
        self._left = _LARGEST_GROWTH * size + _ALWAYS_ALLOWED_BYTES
        self._stream: _Members | pa.CompressedInputStream | BinaryIO
        if codec == "xz":  # which also may be LZMA's older format
            self._stream = _Members(raw, lzma.LZMADecompressor, padded=True)
        elif codec == "bz2":
            self._stream = _Members(raw, bz2.BZ2Decompressor, padded=False)
        elif self._packed:
            self._stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)
        else:
            self._stream = raw
        self._ahead = ReadAhead(self._stream.read) if self._packed and ahead else None

    def close(self) -> None:
        """End what reads ahead, before the file is closed."""
        if self._ahead is not None:
            self._ahead.close()

    @property
    def fraction(self) -> float:
        """How much of the file is read, in [0, 1]."""
        return min(1.0, self._raw.tell() / max(self._size, 1))

    def read(self, size: int) -> bytes:
        """The next bytes, none at the end.

        Raises:
            SourceError: the file is damaged, cut short, or made to fill a disk.
        """
        if self._packed and not self._size:
            raise SourceError(f"{self._name}: an empty file, which no packed file is.")
        try:
            data = (self._ahead or self._stream).read(size)
        except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
            raise SourceError(
                f"{self._name}: damaged or cut short ({one_line(error)}). Fetch it again, or "
                "leave it out."
            ) from error
        self._left -= len(data)
        if self._left < 0:
            raise SourceError(
                f"{self._name}: it unpacks to more than {_LARGEST_GROWTH} times its bytes: it is "
                "made to fill a disk. Leave it out."
            )
        return data


@contextmanager
def open_here(path: Path, *, name: str) -> Iterator[PlainStream]:
    """A file whose bytes lie at `path`; `name` tells how it is packed."""
    try:
        raw = path.open("rb")
    except FileNotFoundError as error:
        raise SourceError(f"{name}: the file is gone.") from error
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}.") from error
    with raw:
        stream = PlainStream(raw, path.stat().st_size, name, ahead=True)
        try:
            yield stream
        finally:
            stream.close()


@contextmanager
def open_anywhere(file: SourceBytes) -> Iterator[PlainStream]:
    """A file that need not be here, from its beginning."""
    with SeekableBytes(file).buffered(_REQUEST_BYTES) as raw:
        yield PlainStream(raw, file.size, file.name)


def pack(data: bytes, path: Path, codec: str) -> None:
    """Write a file, packed."""
    if codec == "none":
        path.write_bytes(data)
    elif codec == "xz":
        path.write_bytes(lzma.compress(data, preset=1))
    else:
        with pa.CompressedOutputStream(str(path), codec) as stream:
            stream.write(data)
