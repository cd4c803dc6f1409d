"""Source files as streams of what is in them: unpacked, read in order and never whole."""

import bz2
import io
import lzma
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from streaming_ext.base.errors import SourceError, one_line
from streaming_ext.text.documents.files import SourceBytes, open_buffered

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz", ".lz4": "lz4"}
_WRITTEN_AS_ONE = {".tgz": "gzip"}  # `.tar.gz`
_PACKED_BYTES = 2**20  # that are taken from a file of members at once
_LARGEST_GROWTH = 200  # bytes for a byte of file: text gives 2 to 10, logs 50
_ALWAYS_ALLOWED_BYTES = 2**28  # a text of the largest size, however well it packs
_CHUNK_BYTES = 2**23  # unpacked at once
_MEMBERS: dict[str, Callable[[], Any]] = {"xz": lzma.LZMADecompressor, "bz2": bz2.BZ2Decompressor}
_WORTH_A_THREAD = 2**20  # bytes of a chunk


def codec_of(name: str) -> str:
    """How a file is packed, by the end of its name; `none` where it is not."""
    known = CODECS | _WRITTEN_AS_ONE
    return next((codec for suffix, codec in known.items() if name.endswith(suffix)), "none")


def packed_suffixes(*plain: str) -> tuple[str, ...]:
    """These suffixes, and each with that of every codec behind it."""
    return tuple(f"{suffix}{packed}" for suffix in plain for packed in ("", *CODECS))


class EndOfHeadError(Exception):
    """A stream that is only looked into goes on."""


class Stream(io.RawIOBase):
    """What documents are read from, in order; Python's libraries take it as a file.

    Attributes:
        start: of the piece of the file that it is of; 0 for a whole one.
        origin: byte of the unpacked file that it begins with.
        position: bytes that were read.
        fraction: of the file that is read, in [0, 1].
        most: bytes that may come in all.
    """

    start: int = 0
    origin: int = 0
    position: int = 0
    fraction: float = 0.0
    most: int = 2**63
    _item: float = float("inf")

    @abstractmethod
    def more(self, size: int) -> bytes:
        """The next bytes, none at the end.

        Raises:
            SourceError: the file is damaged, cut short, or made to fill a disk.
        """

    def read(self, size: int = -1) -> bytes:
        """See `more`.

        Raises:
            SourceError: also where more comes than is allowed.
        """
        data = self.more(size)
        self.position += len(data)
        self._item -= len(data)
        if self._item < 0:
            raise SourceError(f"{self}: a document of too many bytes. Leave the file out.")
        return data

    def allow(self, most: int) -> None:
        """Give no more than so many bytes from here on, until this is called again."""
        self._item = most

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill a buffer with the next bytes."""
        view = memoryview(buffer)
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """How many bytes were read."""
        return self.position


class FileStream(Stream):
    """The content of a file, unpacked, from its beginning; see `open_stream`."""

    def __init__(self, raw: BinaryIO, file: SourceBytes, head: int | None) -> None:
        self._raw, self._file, self._head = raw, file, head
        self.most = _LARGEST_GROWTH * file.size + _ALWAYS_ALLOWED_BYTES
        self._unpacked: _Unpacked | None = None
        self._take: Callable[[int], bytes] = raw.read
        codec = codec_of(file.name)
        if codec == "none":
            return
        if not file.size:
            raise SourceError(f"{file.name}: an empty file, which no packed file is.")
        if codec in _MEMBERS:
            chunk = partial(next, _unpacked_members(raw, _MEMBERS[codec]), b"")
        else:
            unpacked = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)
            chunk = partial(unpacked.read, _CHUNK_BYTES)
        self._unpacked = _Unpacked(chunk, ahead=head is None)
        self._take = self._unpacked.read

    def __str__(self) -> str:
        return self._file.name

    @property
    def fraction(self) -> float:  # type: ignore[override]
        """How much of the file is read, in [0, 1]."""
        return min(1.0, self._raw.tell() / max(self._file.size, 1))

    def more(self, size: int) -> bytes:
        """See `Stream.more`.

        Raises:
            EndOfHeadError: all that is looked at is read.
        """
        if self._head is not None:
            size = min(size, self._head - self.position) if size >= 0 else self._head
            if not size:
                raise EndOfHeadError
        try:
            data = self._take(size)
        except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
            raise SourceError(
                f"{self}: damaged or cut short ({one_line(error)}). Fetch it again, or leave it "
                "out."
            ) from error
        if self.position + len(data) > self.most:
            raise SourceError(
                f"{self}: it unpacks to more than {_LARGEST_GROWTH} times its bytes: it is made "
                "to fill a disk. Leave it out."
            )
        return data

    def close(self) -> None:
        """End what reads ahead, before the file is closed."""
        if self._unpacked is not None:
            self._unpacked.close()
        super().close()


class _Unpacked:
    """Chunks as a stream; the next is unpacked while one is used, which takes about as long."""

    def __init__(self, chunk: Callable[[], bytes], *, ahead: bool) -> None:
        self._next, self._ahead = chunk, ahead
        self._thread = ThreadPoolExecutor(1, "read ahead")
        self._coming: Future[bytes] | None = None
        self._chunk, self._at = b"", 0

    def read(self, size: int) -> bytes:
        """The next bytes, as many unless they end."""
        pieces: list[bytes] = []
        while size:
            if self._at == len(self._chunk):
                self._chunk, self._at = self._coming.result() if self._coming else self._next(), 0
                if not self._chunk:
                    break
                if self._ahead and len(self._chunk) >= _WORTH_A_THREAD:
                    self._coming = self._thread.submit(self._next)
                else:
                    self._coming = None
            pieces.append(self._chunk[self._at : self._at + size])
            self._at += len(pieces[-1])
            size -= len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)


def _unpacked_members(
    raw: BinaryIO, begin: Callable[[], lzma.LZMADecompressor | bz2.BZ2Decompressor]
) -> Iterator[bytes]:
    """What the members of a file hold, one after another.

    Python's own readers take what is no member for the end of the file.
    """
    rest = raw.read(_PACKED_BYTES)
    while rest:
        member = begin()
        while not member.eof:
            if member.needs_input:
                rest = rest or raw.read(_PACKED_BYTES)
                if not rest:
                    raise EOFError("it ends within a member")
            if data := member.decompress(rest, max_length=_CHUNK_BYTES):
                yield data
            rest = b""
        rest, zeros = member.unused_data or raw.read(_PACKED_BYTES), 0
        while rest:  # zeros may stand behind a member, in fours
            members = rest.lstrip(b"\0")
            zeros += len(rest) - len(members)
            if rest := members:
                break
            rest = raw.read(_PACKED_BYTES)
        if zeros % 4:
            raise EOFError(f"{zeros} zeros behind a member, where they come in fours")


@contextmanager
def open_stream(file: SourceBytes, *, head: int | None = None) -> Iterator[Stream]:
    """A file from its beginning.

    Args:
        file: its name tells how it is packed.
        head: bytes that are looked at; `EndOfHeadError` ends them where there are more.

    Raises:
        SourceError: it is empty and should be packed.
    """
    with open_buffered(file) as raw, FileStream(raw, file, head) as stream:
        yield stream
