"""The files in a tar, one after another from a stream: read, never written anywhere.

A tar is whole if nothing but headers, members and blocks of zeros stands in it, and such a block is
the last. `tarfile` alone takes damage after the first member for the end.
"""

import codecs
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Self, cast

from streaming_ext.text.documents.document_rows import MAX_TEXT_BYTES
from streaming_ext.text.documents.files import Stream

_READ_BYTES = 128 * tarfile.BLOCKSIZE  # at once


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar.

    Attributes:
        name: the path of the file there; nothing is ever written to it.
        data: the content, without a byte order mark; None if it is not wanted or has a problem.
        problem: the reason why the file cannot be read.
    """

    name: str
    data: bytes | None
    problem: str = ""


def tar_members(stream: Stream, wanted: tuple[str, ...]) -> Iterator[Member]:
    """Each file, with its content if its name ends in one of `wanted`.

    Raises:
        tarfile.TarError, ValueError: the tar is damaged or cut short.
    """
    before: bytes | bytearray = b"no block of zeros"

    class Header(tarfile.TarInfo):
        """A header; any other damage than the end of a whole tar is an error."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            nonlocal before
            if not buf and any(before):
                raise tarfile.ReadError("no block of zeros ends it after the last member")
            before = buf
            try:
                return super().frombuf(buf, encoding, errors)
            except tarfile.HeaderError as error:
                if any(buf) or len(buf) % tarfile.BLOCKSIZE:
                    raise tarfile.ReadError(str(error)) from error
                raise

    with tarfile.open(
        fileobj=stream,
        mode="r|",
        bufsize=_READ_BYTES,
        tarinfo=Header,
        ignore_zeros=True,  # another tar may follow
        encoding="utf-8",
        errors="surrogateescape",
    ) as tar:
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # else all headers are kept
            is_link = info.islnk() or info.issym()
            is_wanted = info.name.lower().endswith(wanted) and (info.isreg() or is_link)
            if info.issparse() or not 0 <= info.size <= stream.most:
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
