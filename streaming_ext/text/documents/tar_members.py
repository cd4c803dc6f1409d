"""The files in a tar, one after another from a stream: read, never written anywhere.

The bytes alone say whether a tar is whole: each header, each member with its padding, and a block
of zeros after the last one. `tarfile` parses single headers only. As a reader of whole tars it ends
without an error at some damage, and each version of Python at another.
"""

import codecs
import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from tarfile import BLOCKSIZE
from typing import BinaryIO

from streaming_ext.text.documents.document_rows import MAX_TEXT_BYTES
from streaming_ext.text.documents.files import Stream

_READ_BYTES = 2**16  # at once
_MOST_HEADER_BYTES = 2**20  # of a long name, or of the fields of the pax format
_FIELD = re.compile(rb"(\d{1,20}) ([^=]+)=")  # how it begins
_PAX = {tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE}
_EXTENSIONS = {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE, *_PAX}


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar.

    Attributes:
        name: its path there; nothing is ever written to it.
        data: its content, without a byte order mark; None if it is not wanted or has a problem.
        problem: why it cannot be read.
    """

    name: str
    data: bytes | None
    problem: str = ""


def tar_members(stream: Stream, wanted: tuple[str, ...]) -> Iterator[Member]:
    """Each file, with its content if its name ends in one of `wanted`.

    Raises:
        tarfile.TarError, ValueError, EOFError: the tar is damaged or cut short.
    """
    file = io.BufferedReader(stream, _READ_BYTES)
    for info in _headers(file):
        is_link = info.islnk() or info.issym()
        is_wanted = info.name.lower().endswith(wanted) and (info.isreg() or is_link)
        problem = ""
        if is_link:
            problem = "a link, which is not followed"
        elif info.size > MAX_TEXT_BYTES:
            problem = f"longer than {MAX_TEXT_BYTES} bytes"
        data = None
        # Links, folders and devices have no content.
        if info.isreg() or info.type not in tarfile.SUPPORTED_TYPES:
            _require_possible(info, stream.most)
            if is_wanted and not problem:
                data = _content(file, info.size).removeprefix(codecs.BOM_UTF8)
            else:
                _pass_over(file, info.size)
        if is_wanted or info.isreg():
            yield Member(info.name, data, problem if is_wanted else "")


def _headers(file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """The header of each member; whoever takes one reads the content before the next."""
    fields: dict[str, str] = {}  # of the next member
    ended = False
    while block := file.read(BLOCKSIZE):
        ended = not fields and len(block) == BLOCKSIZE and not any(block)
        if ended:  # there may be more zeros, and another tar
            continue
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if info.type in _EXTENSIONS:
            _require_possible(info, _MOST_HEADER_BYTES)
            data = _content(file, info.size)
            if info.type == tarfile.GNUTYPE_LONGNAME:
                fields["path"] = _text(data.partition(b"\0")[0])
            elif info.type in _PAX:
                fields |= _pax_fields(data)
            continue
        is_sparse = any(name.startswith("GNU.sparse.") for name in fields)
        if is_sparse or info.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse member, which is not read")
        info.name, info.size = fields.get("path", info.name), int(fields.get("size", info.size))
        fields = {}
        yield info
    if not ended:
        raise EOFError("no block of zeros ends the tar after its last member")


def _pax_fields(data: bytes) -> dict[str, str]:
    """The fields of records such as `20 path=folder/name\\n`, each after its own size."""
    fields, at, data = {}, 0, data.rstrip(b"\0")
    while at < len(data):
        start = _FIELD.match(data, at)
        end = at + int(start[1]) if start else 0
        if start is None or not start.end() < end <= len(data) or data[end - 1] != ord("\n"):
            raise tarfile.ReadError("invalid field of a header")
        fields[_text(start[2])], at = _text(data[start.end() : end - 1]), end
    return fields


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _content(file: BinaryIO, size: int) -> bytes:
    """The content of a member of this size; its padding is read too."""
    data = _exactly(file, size)
    _exactly(file, -size % BLOCKSIZE)
    return data


def _pass_over(file: BinaryIO, size: int) -> None:
    left = size + -size % BLOCKSIZE
    while left:
        left -= len(_exactly(file, min(left, _READ_BYTES)))


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError("the tar ends within a member")
    return data


def _require_possible(info: tarfile.TarInfo, most: int) -> None:
    if not 0 <= info.size <= most:
        raise tarfile.ReadError(f"a header or a member of {info.size} bytes")
