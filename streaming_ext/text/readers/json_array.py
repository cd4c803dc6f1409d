"""JSON: a file that is one array of objects; or, by its first character, an object a line."""

import codecs
import json
import re
from collections.abc import Iterator

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import DocumentBatch, DocumentRows
from streaming_ext.text.documents.files import SourceBytes, Span
from streaming_ext.text.documents.objects import (
    MAX_ITEM_BYTES,
    TOO_DEEP,
    BadValueError,
    Record,
    Value,
    decoded,
)
from streaming_ext.text.documents.source_format import FileLook, ObjectFormat, SourceFormat
from streaming_ext.text.documents.streams import Stream, open_stream, packed_suffixes
from streaming_ext.text.readers.json_lines import JsonLinesFormat

_HEAD_BYTES = 2**12  # in which the first character stands
_CHUNK_BYTES = 2**20
_SPACE = re.compile(r"[ \t\r\n]*")
_MARK = codecs.BOM_UTF8.decode("latin-1")
_DECODER = json.JSONDecoder(parse_int=float)  # an int of 5,000 digits would be an error
_LONGEST_WORD = 16  # characters that an error may lie before the end of a text that is cut


class JsonArrayFormat(ObjectFormat):
    """Files of one array."""

    name = "json"
    suffixes = packed_suffixes(".json")

    def values(self, stream: Stream, where: str) -> Iterator[Value]:
        """See `ObjectFormat.values`."""
        return iter(_Array(stream, where))


class JsonFormat(SourceFormat):
    """`.json` files: each is what its first character says."""

    name = "json"
    suffixes = packed_suffixes(".json")
    must_be_named = True
    _array, _lines = JsonArrayFormat(), JsonLinesFormat()

    def _of(self, file: SourceBytes, span: Span | None = None) -> ObjectFormat:
        if span is not None:
            return self._lines
        with open_stream(file, head=_HEAD_BYTES) as stream:
            head = stream.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8)
        return self._array if head.lstrip().startswith(b"[") else self._lines

    def documents(
        self, file: SourceBytes, rows: DocumentRows, span: Span | None
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`; a span is of lines."""
        return self._of(file, span).documents(file, rows, span)

    def records(
        self, file: SourceBytes, options: ReadOptions, span: Span | None
    ) -> Iterator[list[Record]]:
        """See `SourceFormat.records`."""
        return self._of(file, span).records(file, options, span)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`."""
        return self._of(file).can_be_cut(file)

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`; of lines."""
        return self._lines.needed(file, options, span)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook | None:
        """See `SourceFormat.look`."""
        return self._of(file).look(file, options)


class _Array:
    """The values of the one array that a stream is.

    Where each ends is found in the file as Latin-1, in which a byte is a character. Then each is
    decoded alone: bytes that are no UTF-8 and too deep a nesting cost no other value.
    """

    def __init__(self, stream: Stream, where: str) -> None:
        self._stream, self._where = stream, where
        self._text, self._at = "", 0
        self._before = 0  # bytes before `_text`, a byte order mark left out
        self._number = 1

    def __iter__(self) -> Iterator[Value]:
        """Each value.

        Raises:
            SourceError: the file is no array, damaged or cut short; names document and byte.
        """
        while len(self._text) < len(_MARK) and self._more():
            pass
        if self._text.startswith(_MARK):
            self._text = self._text[len(_MARK) :]
        found = self._take("[")
        if self._peek() == "]":
            found = self._take("]")
        while found != "]":
            yield self._value()
            self._number += 1
            found = self._take(",", "]")
        if self._peek():
            raise self._refused("something stands behind the end of the array")

    def _value(self) -> Value:
        self._peek()
        end = self._end()
        start, data = self._before + self._at, self._text[self._at : end].encode("latin-1")
        self._at = end
        value: object
        try:
            value = decoded(data)
        except BadValueError as error:
            value, start = error, start + error.byte
        return Value(f"document {self._number}, byte {start}", value, len(data))

    def _end(self) -> int:
        """Where the value ends that begins here."""
        while True:
            try:
                end = _DECODER.raw_decode(self._text, self._at)[1]
            except json.JSONDecodeError as error:
                cut = error.pos > len(self._text) - _LONGEST_WORD or "Unterminated" in error.msg
                at = error.pos - self._at
                if not cut or not self._more():
                    raise self._refused(f"no valid JSON ({error.msg})", at) from error
            except RecursionError as error:
                raise self._refused(TOO_DEEP) from error
            else:
                length = end - self._at
                if end < len(self._text) or not self._more():  # else a number may go on
                    return self._at + length

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
            raise self._refused(f"expected {words}, got {found or 'the end of the file'!r}")
        self._at += 1
        return found

    def _more(self) -> bool:
        """Read at least as much again as is left, and drop what is used."""
        self._text, self._before, self._at = self._text[self._at :], self._before + self._at, 0
        if len(self._text) > MAX_ITEM_BYTES:
            raise self._refused(f"longer than {MAX_ITEM_BYTES} bytes")
        data = self._stream.read(max(_CHUNK_BYTES, len(self._text)))
        self._text += data.decode("latin-1")
        return bool(data)

    def _refused(self, problem: str, behind: int = 0) -> SourceError:
        byte = self._before + self._at + behind
        return SourceError(
            f"{self._where}: document {self._number}, byte {byte}: {problem}. Mend it, or leave "
            "the file out."
        )
