"""The files in a tar, one after another from a stream: read, never written anywhere.

`tarfile` reads them. By itself it takes headers of any size, and ends without an error if a later
header is damaged or the end is missing.
"""

import codecs
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from streaming_ext.text.documents.document_rows import MAX_TEXT_BYTES
from streaming_ext.text.documents.files import Stream

_MOST_HEADER_BYTES = 2**20  # of a long name, or of the fields of the pax format
_HEADERS = {
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
}


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar.

    Attributes:
        name: its path there; nothing is ever written to it.
        byte: of the unpacked tar at which its content begins.
        data: its content, without a byte order mark; None if it is not wanted or has a problem.
        problem: why it cannot be read.
    """

    name: str
    byte: int
    data: bytes | None
    problem: str = ""


def tar_members(stream: Stream, wanted: tuple[str, ...]) -> Iterator[Member]:
    """Each file, with its content if its name ends in one of `wanted`.

    Raises:
        tarfile.TarError, ValueError, OverflowError: the tar is damaged or cut short.
    """
    # Tars may be concatenated, with zeros between them.
    with tarfile.open(
        fileobj=stream, mode="r|", tarinfo=_strict_header(stream.most), ignore_zeros=True
    ) as tar:
        for info in tar:
            _require_possible(info, stream.most)
            tar.members = []  # type: ignore[attr-defined]  # else all are kept in memory
            is_link = info.islnk() or info.issym()
            is_wanted = info.name.lower().endswith(wanted) and (info.isreg() or is_link)
            problem = ""
            if is_link:
                problem = "a link, which is not followed"
            elif info.issparse():
                problem = "a sparse file, which is not read"
            elif info.size > MAX_TEXT_BYTES:
                problem = f"longer than {MAX_TEXT_BYTES} bytes"
            data = None
            if is_wanted and not problem and (file := tar.extractfile(info)) is not None:
                data = file.read().removeprefix(codecs.BOM_UTF8)
            if is_wanted or info.isreg():
                yield Member(info.name, info.offset_data, data, problem if is_wanted else "")


def _strict_header(most: int) -> type[tarfile.TarInfo]:
    """A parser of headers that accepts nothing but a header, or the zeros of an end."""
    ended = False

    class Header(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            nonlocal ended
            before, ended = ended, len(buf) == tarfile.BLOCKSIZE and not any(buf)
            try:
                info = super().frombuf(buf, encoding, errors)
            except tarfile.HeaderError as error:
                if ended or (before and not buf):
                    raise
                raise tarfile.ReadError(str(error)) from error
            _require_possible(info, _MOST_HEADER_BYTES if info.type in _HEADERS else most)
            return info

    return Header


def _require_possible(info: tarfile.TarInfo, most: int) -> None:
    if not 0 <= info.size <= most:
        raise tarfile.ReadError(f"a header or a member of {info.size} bytes")
