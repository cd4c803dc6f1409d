"""The files in a tar, one after another from a stream: read, never written anywhere.

Python's own module follows negative sizes for ever in some versions, and takes headers of any size.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import Stream
from streaming_ext.text.documents.source_format import MAX_TEXT_BYTES

_MOST_DIGITS = 20  # of a size: 64 bits
_BLOCK = 512
_READ_BYTES = 2**20
_MOST_HEADER_BYTES = 2**20  # of a long name, or of the fields of the pax format
_REGULAR, _LINKS = (b"0", b"\0", b"7"), (b"1", b"2")
_LONG_NAME, _PAX, _SPARSE = b"L", b"x", b"S"


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
            if not any(header):
                ended = True
                continue
            ended = False
            size, kind = self._size(header), header[156:157]
            if kind in {_LONG_NAME, _PAX}:
                data = self._take(self._bounded(size))
                self._skip(-size % _BLOCK)
                if kind == _LONG_NAME:
                    long_name = data.rstrip(b"\0").decode(errors="replace")
                else:
                    fields = self._fields(data)
                continue
            name = fields.get("path") or long_name or _name(header)
            if (told := fields.get("size", "")).isdecimal():
                if len(told) > _MOST_DIGITS:
                    raise self._damaged(f"a size of {len(told)} digits")
                size = int(told)
            sparse = kind == _SPARSE or any(field.startswith("GNU.sparse.") for field in fields)
            long_name, fields = "", {}
            yield from self._member(name, kind, size, sparse=sparse)
        if not ended:
            raise self._damaged("cut short: the end of a tar is missing")

    def _member(self, name: str, kind: bytes, size: int, *, sparse: bool) -> Iterator[Member]:
        wanted = name.lower().endswith(self._wanted)
        byte = self._byte
        data, problem = None, ""
        if kind in _LINKS:
            size, problem = 0, "a link, which is not followed"
        elif sparse:
            problem = "a sparse file, which is not read"
        elif kind not in _REGULAR:
            wanted = False
        elif size > MAX_TEXT_BYTES:
            problem = f"longer than {MAX_TEXT_BYTES} bytes"
        elif wanted:
            data = self._take(size).removeprefix(codecs.BOM_UTF8)
        if data is None:
            self._skip(size)
        self._skip(-size % _BLOCK)
        if kind in _REGULAR or (wanted and problem):
            yield Member(name, byte, data, problem if wanted else "")

    def _size(self, header: bytes) -> int:
        """The size that a header tells, once its sum is right."""
        expected = sum(header) - sum(header[148:156]) + 8 * ord(" ")
        try:
            if _octal(header[148:156]) != expected:
                raise self._damaged("the sum of a header is wrong")
            field = header[124:136]
            if field[0] & 0x80:  # a number of 11 bytes; negative ones begin otherwise
                size = int.from_bytes(field[1:]) if field[0] == 0x80 else -1
            else:
                size = _octal(field)
        except ValueError as error:
            raise self._damaged("no tar") from error
        if size < 0:
            raise self._damaged("a member of negative size")
        return size

    def _bounded(self, size: int) -> int:
        if size > _MOST_HEADER_BYTES:
            raise self._damaged(f"a header of {size} bytes")
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


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode(errors="replace")


def _octal(field: bytes) -> int:
    return int(field.strip(b" \0") or b"0", 8)
