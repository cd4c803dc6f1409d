"""The files in a tar, one after another from a stream: read, never written anywhere.

A tar is whole if it holds only headers, members and blocks of zeros, and ends with a block of
zeros. `tarfile` alone treats damage after the first member as the end.
"""

import codecs
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, cast

from streaming_ext.text.documents.document_rows import MAX_TEXT_BYTES
from streaming_ext.text.documents.files import Stream

_READ_BYTES = 128 * tarfile.BLOCKSIZE  # that are read at once
_ZEROS = bytes(tarfile.BLOCKSIZE)


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar.

    Attributes:
        name: the path of the file in the tar; nothing is ever written to it.
        data: the content, without a byte order mark; None if it is not wanted or has a problem.
        problem: the reason why the file cannot be read.
    """

    name: str
    data: bytes | None
    problem: str = ""


class _Blocks:
    """A stream as a file that `tarfile` reads forward, with the last block that it read.

    Attributes:
        last: the bytes of the last read.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream, self._at, self._put_back, self.last = stream, 0, b"", b""

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self._at

    def read(self, size: int) -> bytes:
        """Read the next bytes; fewer than `size` come only at the end."""
        chunks = [self._put_back]
        self._put_back, wanted = b"", size - len(chunks[0])
        while wanted and (chunk := self._stream.read(wanted)):
            chunks.append(chunk)
            wanted -= len(chunk)
        self.last = b"".join(chunks)
        self._at += len(self.last)
        return self.last

    def seek(self, position: int) -> None:
        """Skip everything before a position."""
        while self._at < position and self.read(min(position - self._at, _READ_BYTES)):
            pass

    def back(self) -> None:
        """Put the last block back, to be read once more."""
        self._put_back, self._at = self.last, self._at - len(self.last)


def tar_members(stream: Stream, wanted: tuple[str, ...]) -> Iterator[Member]:
    """Yield each file, with its content if its name ends in one of `wanted`.

    Raises:
        tarfile.TarError, ValueError: the tar is damaged or cut short.
    """
    blocks = _Blocks(stream)
    while True:
        with tarfile.open(
            fileobj=cast("IO[bytes]", blocks),
            mode="r:",
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar:
            yield from _members(tar, wanted, stream.most)
        if not blocks.last:
            raise tarfile.ReadError("no block of zeros ends it after the last member")
        if blocks.last != _ZEROS:
            raise tarfile.ReadError("a header that is damaged or cut short")
        while blocks.read(tarfile.BLOCKSIZE) == _ZEROS:
            pass
        if not blocks.last:
            return
        blocks.back()  # another tar follows


def _members(tar: tarfile.TarFile, wanted: tuple[str, ...], most: int) -> Iterator[Member]:
    while (info := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # else all headers are kept
        is_link = info.islnk() or info.issym()
        is_wanted = info.name.lower().endswith(wanted) and (info.isreg() or is_link)
        if info.issparse() or not 0 <= info.size <= most:
            kind = "sparse " if info.issparse() else ""
            raise tarfile.ReadError(f"a {kind}member of {info.size} bytes, which is not read")
        problem = ""
        if is_link:
            problem = "a link, which is not followed"
        elif info.size > MAX_TEXT_BYTES:
            problem = f"longer than {MAX_TEXT_BYTES} bytes"
        data = None
        if is_wanted and not problem:
            content = cast("IO[bytes]", tar.extractfile(info)).read()
            data = content.removeprefix(codecs.BOM_UTF8)
        if is_wanted or info.isreg():
            yield Member(info.name, data, problem if is_wanted else "")
