"""`.json` files: one array of objects or, if the first character says so, an object a line."""

import codecs
import json
import re
from collections.abc import Iterator

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import DocumentBatch, DocumentRows
from streaming_ext.text.documents.files import SourceBytes
from streaming_ext.text.documents.objects import (
    DECODER,
    MAX_ITEM_BYTES,
    BadValueError,
    Value,
    decoded,
)
from streaming_ext.text.documents.source_format import ObjectFormat
from streaming_ext.text.documents.streams import Stream, head_of, packed_suffixes
from streaming_ext.text.readers.json_lines import JsonLinesFormat

_HEAD_BYTES = 2**12  # in which the first character is
_CHUNK_BYTES = 2**20  # of an array, read at once
_SPACE = re.compile(r"[ \t\r\n]*")
_MARK = codecs.BOM_UTF8.decode("latin-1")
_LONGEST_WORD = 16  # characters that an error may lie before the end of a text that is cut


class JsonFormat(JsonLinesFormat):
    """`.json` files: the first character decides what each is."""

    name = "json"
    suffixes = packed_suffixes(".json")
    must_be_named = True

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[Value]:
        """See `ObjectFormat.values`."""
        if _is_array(stream.file):
            return _Array(stream).values()
        return super().values(stream, options)

    def documents(self, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`; a span is of lines."""
        is_array = rows.span is None and _is_array(rows.file)
        return (ObjectFormat if is_array else JsonLinesFormat).documents(self, rows)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: an array cannot."""
        return super().can_be_cut(file) and not _is_array(file)


def _is_array(file: SourceBytes) -> bool:
    return head_of(file, _HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


class _Array:
    """The values of the array that a stream consists of.

    The end of each is found in the file as Latin-1, in which a byte is a character. Then each is
    decoded alone: bytes that are no UTF-8 and too deep a nesting cost no other value.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._text, self._at = "", 0
        self._before = 0  # bytes before `_text`, without a byte order mark

    def values(self) -> Iterator[Value]:
        """Each value.

        Raises:
            ValueError: the file is no array, damaged or cut short; names the byte.
        """
        while len(self._text) < len(_MARK) and self._more():
            pass
        self._text = self._text.removeprefix(_MARK)
        found, number = self._take("["), 1
        if self._peek() == "]":
            found = self._take("]")
        while found != "]":
            self._peek()
            end, start = self._end_of_value(), self._before + self._at
            data = self._text[self._at : end].encode("latin-1")
            self._at, byte = end, 0
            value: object
            try:
                value = decoded(data)
            except BadValueError as error:
                value, byte = error, error.byte
            yield Value(f"document {number}, byte {start + byte}", value, len(data))
            number += 1
            found = self._take(",", "]")
        if self._peek():
            raise self._fault("more text follows the end of the array", self._at)

    def _end_of_value(self) -> int:
        """The end in `_text` of the value that begins at `_at`."""
        while True:
            try:
                end = DECODER.raw_decode(self._text, self._at)[1]
            except json.JSONDecodeError as error:
                is_cut = error.pos > len(self._text) - _LONGEST_WORD or "Unterminated" in error.msg
                if not (is_cut and self._more()):
                    raise self._fault(error.msg, error.pos) from error
            else:
                if end < len(self._text) or not self._more():  # a number may continue
                    return end

    def _peek(self) -> str:
        """The next character that is no white space; none at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def _take(self, *expected: str) -> str:
        found = self._peek()
        if found not in expected:
            words = " or ".join(map(repr, expected))
            raise self._fault(f"expected {words}, got {found or 'the end of the file'!r}", self._at)
        self._at += 1
        return found

    def _more(self) -> bool:
        """Read at least as much again as is left, and drop what is used; False at the end."""
        left = len(self._text) - self._at
        if left > MAX_ITEM_BYTES:
            raise self._fault(f"longer than {MAX_ITEM_BYTES} bytes", self._at)
        data = self._stream.read(max(_CHUNK_BYTES, left))
        if data:
            self._text = self._text[self._at :] + data.decode("latin-1")
            self._before, self._at = self._before + self._at, 0
        return bool(data)

    def _fault(self, problem: str, at: int) -> ValueError:
        return ValueError(f"byte {self._before + at}: {problem}")
