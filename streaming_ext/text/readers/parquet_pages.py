"""The checksums of Parquet's pages: whether they are there, and whether they are right.

A page is a header in Thrift's compact protocol and then its bytes, packed; the header may hold a
CRC-32 of those. A reader that compares them tells of damage only when it comes by.
"""

import io
import zlib
from typing import BinaryIO

from streaming_ext.errors import SourceError, UsageError
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import SeekableBytes, SourceBytes, Span
from streaming_ext.text.readers.parquet_footer import groups_of, span_of, text_chunks

_PACKED_SIZE, _CRC = 3, 4  # fields of a header
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY = 0, 1, 2, 3, 7, 8  # kinds of fields
_LIST, _SET, _MAP, _STRUCT = 9, 10, 11, 12
_INTEGERS = {4, 5, 6}
_READ_BYTES = 2**20
_DEEPEST = 8  # structs in structs; a header has three


def text_is_checked(file: SourceBytes, options: ReadOptions, span: Span | None = None) -> bool:
    """Compare the pages of a file's text with the checksums in their headers.

    Args:
        file: at least the text and the footer, where they belong.
        options: which text.
        span: of the piece of the file whose text it is; all of it by default.

    Returns:
        Whether each page has one. What cannot be gone through has none: who reads it says why.

    Raises:
        SourceError: a page before the first without one is not the page that was written.
    """
    try:
        _, metadata, chunks = text_chunks(file, options)
    except (SourceError, UsageError):
        return False
    groups = groups_of(metadata, span, file.size)[0]
    spans = [span_of(chunk) for group in groups for chunk in chunks[group]]
    pages = SeekableBytes(file).buffered(_READ_BYTES)
    try:
        return all(_is_checked(pages, file, span) for span in spans)
    except _UnknownHeaderError:
        return False


def _is_checked(pages: BinaryIO, file: SourceBytes, chunk: Span) -> bool:
    """See `text_is_checked`, of one chunk."""
    start, end = chunk
    if not 0 <= start <= end <= file.size:
        return False
    pages.seek(start)
    while (at := pages.tell()) < end:
        fields = _Compact(pages, end).struct()
        size, crc = fields.get(_PACKED_SIZE, -1), fields.get(_CRC)
        if crc is None or not 0 <= size <= end - pages.tell():
            return False
        if _crc_of(pages, size) != crc & 0xFFFFFFFF:
            raise SourceError(
                f"{file.name}: the page at byte {at} is not the one that was written."
            )
    return True


def _crc_of(file: BinaryIO, size: int) -> int:
    """The CRC-32 of the next so many bytes."""
    crc = 0
    while size and (data := file.read(min(size, _READ_BYTES))):
        crc = zlib.crc32(data, crc)
        size -= len(data)
    return crc


class _UnknownHeaderError(Exception):
    """What should be the header of a page is none."""


class _Compact:
    """Reads one struct of Thrift's compact protocol, of which integers are kept."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file, self._end = file, end

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Its fields of whole numbers, by id; the others are gone over."""
        found: dict[int, int] = {}
        number = 0
        while (head := self._byte()) & 15 != _STOP:
            kind, step = head & 15, head >> 4
            number = number + step if step else self._integer()
            if kind in _INTEGERS:
                found[number] = self._integer()
            elif kind not in {_TRUE, _FALSE}:  # of a field, the kind is the value
                self._skip(kind, depth + 1)
        return found

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise _UnknownHeaderError
        if kind in {_TRUE, _FALSE, _BYTE}:
            self._byte()
        elif kind in _INTEGERS:
            self._varint()
        elif kind in {_DOUBLE, _BINARY}:
            self._forward(8 if kind == _DOUBLE else self._varint())
        elif kind in {_LIST, _SET}:
            head = self._byte()
            for _ in range(self._varint() if head >> 4 == 15 else head >> 4):
                self._skip(head & 15, depth + 1)
        elif kind == _MAP:
            size = self._varint()
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._skip(kinds >> 4, depth + 1)
                self._skip(kinds & 15, depth + 1)
        elif kind == _STRUCT:
            self.struct(depth)
        else:
            raise _UnknownHeaderError

    def _byte(self) -> int:
        data = self._file.read(1)
        if not data or self._file.tell() > self._end:
            raise _UnknownHeaderError
        return data[0]

    def _forward(self, size: int) -> None:
        if size > self._end - self._file.tell():
            raise _UnknownHeaderError
        self._file.seek(size, io.SEEK_CUR)

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise _UnknownHeaderError
        return value | byte << shift

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
