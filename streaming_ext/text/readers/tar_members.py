"""The files in a tar, one after another from a stream: read, never written anywhere.

`tarfile` reads the headers. Its own way through a file takes headers of any size, and ends without
an error where a later header is damaged or the end is missing.
"""

import codecs
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import Stream
from streaming_ext.text.documents.source_format import MAX_TEXT_BYTES

_MOST_DIGITS = 20  # of a size: 64 bits
_BLOCK = tarfile.BLOCKSIZE
_READ_BYTES = 2**20
_MOST_HEADER_BYTES = 2**20  # of a long name, or of the fields of the pax format


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar.

    Attributes:
        name: its path there; nothing is ever written to it.
        byte: of the unpacked tar where its content begins.
        data: its content, a byte order mark left out; None where it is not wanted or not there.
        problem: why it cannot.
    """

    name: str
    byte: int
    data: bytes | None
    problem: str = ""


class TarMembers:
    """Goes through the members of a tar."""

    def __init__(
        self, stream: Stream, where: str, wanted: tuple[str, ...] = (".txt", ".json")
    ) -> None:
        """Begin with the first member.

        Args:
            stream: the bytes of the tar.
            where: what messages call it.
            wanted: ends of the names of members whose content is read.
        """
        self._stream, self._where, self._wanted = stream, where, wanted
        self._data, self._at = b"", 0
        self._byte = 0  # of the tar that comes next

    def __iter__(self) -> Iterator[Member]:
        """Each file, with its content if its name ends in what text does.

        Raises:
            SourceError: the tar is damaged or cut short; names the byte.
        """
        ended = False
        long_name, fields = "", dict[str, str]()
        while header := self._take(_BLOCK, or_nothing=ended):
            ended = not any(header)
            if ended:
                continue
            try:
                info = tarfile.TarInfo.frombuf(header, "utf-8", "replace")
            except tarfile.HeaderError as error:
                raise self._damaged(f"no tar ({error})") from error
            if info.type in {tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE}:
                if info.size > _MOST_HEADER_BYTES:
                    raise self._damaged(f"a header of {info.size} bytes")
                data = self._take(self._sound(info.size))
                self._skip(-info.size % _BLOCK)
                if info.type == tarfile.XHDTYPE:
                    fields = self._fields(data)
                else:
                    long_name = data.rstrip(b"\0").decode(errors="replace")
                continue
            info.name = fields.get("path") or long_name or info.name
            if (digits := fields.get("size", "")).isdecimal():
                if len(digits) > _MOST_DIGITS:
                    raise self._damaged(f"a size of {len(digits)} digits")
                info.size = int(digits)
            sparse = any(field.startswith("GNU.sparse.") for field in fields)
            long_name, fields = "", {}
            yield from self._member(info, sparse=sparse or info.type == tarfile.GNUTYPE_SPARSE)
        if not ended:
            raise self._damaged("cut short: the end of a tar is missing")

    def _member(self, info: tarfile.TarInfo, *, sparse: bool) -> Iterator[Member]:
        is_file = info.type in tarfile.REGULAR_TYPES
        wanted = (is_file or info.islnk() or info.issym()) and info.name.lower().endswith(
            self._wanted
        )
        byte, size = self._byte, self._sound(info.size)
        data, problem = None, ""
        if info.islnk() or info.issym():
            size, problem = 0, "a link, which is not followed"
        elif sparse:
            problem = "a sparse file, which is not read"
        elif size > MAX_TEXT_BYTES:
            problem = f"longer than {MAX_TEXT_BYTES} bytes"
        if wanted and not problem:
            data = self._take(size).removeprefix(codecs.BOM_UTF8)
        else:
            self._skip(size)
        self._skip(-size % _BLOCK)
        if is_file or wanted:
            yield Member(info.name, byte, data, problem if wanted else "")

    def _sound(self, size: int) -> int:
        if size < 0:
            raise self._damaged("a member of negative size")
        return size

    def _fields(self, data: bytes) -> dict[str, str]:
        """The fields of the pax format: `LENGTH NAME=VALUE` and a newline each."""
        found, at = {}, 0
        while at < len(data):
            digits, _, _ = data[at : at + 20].partition(b" ")
            length = int(digits) if digits.isdigit() else 0
            name, equals, value = data[at + len(digits) + 1 : at + length - 1].partition(b"=")
            if length <= len(digits) or not equals:
                raise self._damaged("no field of the pax format")
            found[name.decode(errors="replace")] = value.decode(errors="replace")
            at += length
        return found

    def _take(self, count: int, *, or_nothing: bool = False) -> bytes:
        """So many bytes."""
        pieces = [self._data[self._at : self._at + count]]
        have = len(pieces[0])
        self._at += have
        while have < count and (data := self._stream.read(max(_READ_BYTES, count - have))):
            self._data, self._at = data, min(len(data), count - have)
            pieces.append(data[: self._at])
            have += self._at
        if have < count and not (or_nothing and not have):
            raise self._damaged("cut short")
        self._byte += have
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _skip(self, count: int) -> None:
        while count:
            count -= len(self._take(min(count, _READ_BYTES)))

    def _damaged(self, problem: str) -> SourceError:
        return SourceError(
            f"{self._where}: byte {self._byte}: {problem}. Fetch the file again, or leave it out."
        )
