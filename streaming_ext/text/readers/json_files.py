"""JSON Lines, one object per line, plain or packed; and `.json` files, which may be an array.

A row is a line; a blank line holds no text. Arrow's parser reads a block of lines at once, but only
if nothing in the block is unusual. The lines of other blocks are read one by one, so that messages
name the bad ones.

A line begins at byte 0 and after each newline. Of 10 bytes, with lines that begin at 0, 3 and 8:

    a b | c d e f | g h      | is a newline
          [ 3 . 5 )          holds `cdef`, read to its end at 8
                [ 5 . . 10 ) holds `gh`: `cdef` began before
"""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from streaming_ext.base.arrays import Ints
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import wanted_columns
from streaming_ext.text.documents.document_rows import (
    MAX_BATCH_ROWS,
    MAX_TEXT_BYTES,
    DocumentBatch,
    DocumentRows,
)
from streaming_ext.text.documents.files import (
    SourceBytes,
    Span,
    Stream,
    codec_of,
    head_of,
    packed_suffixes,
)
from streaming_ext.text.documents.objects import (
    DECODER,
    MAX_DEPTH,
    MAX_ITEM_BYTES,
    TOO_LONG,
    TYPES,
    BadValueError,
    ParsedValue,
    batches_of_values,
    decoded,
    is_too_deep,
    value_at,
)
from streaming_ext.text.documents.source_format import FileBlock, ObjectFormat

_NEWLINE = ord("\n")
_TAIL_BYTES = 2**16  # that are read at once to find the end of a line


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Some consecutive lines.

    Attributes:
        data: the bytes of the lines.
        starts, ends: the bounds of each line in `data`, without its newline: (lines,).
        first_line: the number of the first line, from 0.
        offset: the offset of `data` in the stream.
    """

    data: memoryview
    starts: Ints
    ends: Ints
    first_line: int
    offset: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def too_long(self) -> Ints:
        """Lines that are longer than any text may be; `data` may lack them."""
        return np.flatnonzero(self.ends - self.starts > MAX_TEXT_BYTES)


def line_blocks(stream: Stream, block_bytes: int) -> Iterator[LineBlock]:
    """Yield all lines in blocks of about `block_bytes`; a longer line is a block of its own."""
    line = offset = 0
    for data, size in _complete_lines(stream, block_bytes):
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
        if not data.endswith(b"\n"):
            ends = np.append(ends, size)
        starts = np.concatenate([[0], ends[:-1] + 1])
        if not offset and not stream.origin and data.startswith(codecs.BOM_UTF8):
            starts[0] = len(codecs.BOM_UTF8)
        for first in range(0, len(ends), MAX_BATCH_ROWS):
            chosen = slice(first, first + MAX_BATCH_ROWS)
            begin, end = int(starts[first]), int(ends[chosen][-1])
            yield LineBlock(
                memoryview(data)[begin:end],
                starts[chosen] - begin,
                ends[chosen] - begin,
                line + first,
                offset + begin,
            )
        line, offset = line + len(ends), offset + size


def _complete_lines(stream: Stream, block_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of lines and their sizes in bytes; a line that is too long has only a size."""
    held: list[bytes] = []  # a line whose end is not read yet, unless it is too long
    size = 0
    while data := stream.read(block_bytes):
        if size > MAX_TEXT_BYTES and (end := data.find(b"\n") + 1):
            yield b"", size + end
            data, size = data[end:], 0
        if end := data.rfind(b"\n") + 1:
            lines = b"".join([*held, memoryview(data)[:end]])
            held, size, data = [], 0, data[end:]
            yield lines, len(lines)
            del lines
        size += len(data)
        held = [] if size > MAX_TEXT_BYTES else [*held, data]
    if size:
        yield b"".join(held), size


def line_from(file: SourceBytes, at: int) -> int:
    """Find the first line that begins at or after a byte."""
    begin = at - 1
    while 0 <= begin < file.size:
        data = file.read(begin, min(begin + _TAIL_BYTES, file.size))
        if (newline := data.find(b"\n")) >= 0:
            return begin + newline + 1
        begin += len(data)
    return at and file.size


_BLOCK_BYTES = 4 * 2**20  # the size of a block for samples, in a file that is not packed
_READ_BYTES = 2**20  # that are read at once if lines are parsed one by one
_SMALL = 2**15  # bytes of a block; Arrow's parser needs half a millisecond to start
_OPEN, _CLOSE, _RETURN = b"{}\r"
_KEPT: dict[type, pa.DataType] = {bool: pa.bool_(), int: pa.float64(), float: pa.float64()}
_BLANK: dict[str, Any] = {}


class JsonLinesFormat(ObjectFormat):
    """Files with one object per line."""

    name = "jsonl"
    suffixes = packed_suffixes(".jsonl", ".ndjson")

    def stream(self, file: SourceBytes, span: Span | None, head: int | None = None) -> Stream:
        """See `ObjectFormat.stream`."""
        if span is not None:
            span = line_from(file, span[0]), line_from(file, span[1])
        return super().stream(file, span, head)

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[ParsedValue]:
        """See `ObjectFormat.values`; blank lines are left out."""
        for block in line_blocks(stream, _READ_BYTES):
            yield from (one for one in _values(block, stream) if one.value is not _BLANK)

    def documents(self, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`; messages name the line and the byte."""
        with self.stream(rows.file, rows.span) as stream:
            for block in line_blocks(stream, rows.batch_bytes):
                columns = _at_once(block, rows.options) if len(block.data) > _SMALL else None
                if columns is None:
                    yield from batches_of_values(_values(block, stream), rows, stream)
                    continue
                positions = block.starts + (stream.origin + block.offset)
                del block  # before the texts are used, since a line may be large
                yield from rows.batches(columns, stream.fraction, (), positions)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: a packed file cannot."""
        return codec_of(file.name) == "none"

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span | None) -> Sequence[Span]:
        """See `SourceFormat.needed`: the lines that begin in the span, and the byte before."""
        start, end = span or (0, file.size)
        return ((max(start - 1, 0), line_from(file, end)),) if start < end else ()

    def blocks(self, file: SourceBytes, options: ReadOptions) -> Sequence[FileBlock]:
        """See `SourceFormat.blocks`: spans of a file that is not packed."""
        if not self.can_be_cut(file):
            return super().blocks(file, options)
        spans = [
            (start, min(start + _BLOCK_BYTES, file.size))
            for start in range(0, file.size, _BLOCK_BYTES)
        ]
        return [FileBlock(end - start, (start, end)) for start, end in spans]


def _values(block: LineBlock, stream: Stream) -> Iterator[ParsedValue]:
    """Yield the value of each line, or its fault; `_BLANK` for a blank line."""
    origin = f" from byte {stream.origin} on" if stream.origin else ""
    begin = stream.origin + block.offset
    too_long = {*block.too_long.tolist()}
    ends = zip(block.starts.tolist(), block.ends.tolist(), strict=True)
    for number, (start, end) in enumerate(ends):
        line = bytes(block.data[start:end])
        value = decoded(line) if line.strip() else _BLANK
        if number in too_long:
            value = BadValueError(TOO_LONG)
        at = begin + start
        yield ParsedValue(f"line {block.first_line + number + 1}{origin}, byte {at}", value, 0, at)


def _at_once(block: LineBlock, options: ReadOptions) -> list[pa.Array] | None:
    """Return the columns of a block, with nulls; None if Arrow may read the lines differently."""
    if len(block.too_long) or (block.ends == block.starts).any():
        return None
    data = np.frombuffer(block.data, np.uint8)
    lasts = block.ends - 1
    lasts = lasts - (data[lasts] == _RETURN)
    if not ((data[block.starts] == _OPEN) & (data[lasts] == _CLOSE)).all():
        return None  # a line may hold two objects, or continue in the next line
    schema = None if _any_too_deep(block) else _schema(block, options)
    if schema is None:
        return None
    buffer = pa.py_buffer(block.data)
    bounds = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, bounds, buffer).validate(full=True)
        table = pa.json.read_json(
            pa.BufferReader(buffer),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return None
    if len(table) != len(block):
        return None
    return [_column(table, column) for column, _ in wanted_columns(options)]


def _any_too_deep(block: LineBlock) -> bool:
    return any(
        is_too_deep(bytes(block.data[block.starts[line] : block.ends[line]]))
        for line in np.flatnonzero(block.ends - block.starts > 2 * MAX_DEPTH)
    )


def _schema(block: LineBlock, options: ReadOptions) -> pa.Schema | None:
    """Return fields for each name, and for the path it may be; None if these contradict each other.

    The first line decides the type of a column that is kept.
    """
    fields, first = [], None
    for column, kind in wanted_columns(options):
        if kind == "any":  # Arrow reads one type only
            return None
        if kind == "value" and first is None:
            first = decoded(bytes(block.data[block.starts[0] : block.ends[0]]))
        found = value_at(first, column) if isinstance(first, dict) else None
        own = TYPES[kind] or _KEPT.get(type(found), pa.large_string())
        fields += [pa.schema([_field(path, own)]) for path in ([column], column.split("."))]
    try:
        return pa.unify_schemas(fields, promote_options="permissive")
    except pa.ArrowTypeError:  # one name is a value, and another is a path through it
        return None


def _field(path: Sequence[str], kind: pa.DataType) -> pa.Field:
    name, *inside = path
    return pa.field(name, pa.struct([_field(inside, kind)]) if inside else kind)


def _column(table: pa.Table, column: str) -> pa.Array:
    """Return the field of this name, with the field at the end of the path in place of nulls."""
    values = table.column(column)
    head, *path = column.split(".")
    if path:
        values = pc.coalesce(values, pc.struct_field(table.column(head), path))
    return values.combine_chunks()


_HEAD_BYTES = 2**12  # that are searched for the first character
_CHUNK_BYTES = 2**20  # of an array, that are read at once
_MARK = codecs.BOM_UTF8.decode("latin-1")
_SEPARATOR = re.compile(r"[ \t\r\n]*([\[\],]?)[ \t\r\n]*")
_LONGEST_WORD = 16  # an error may lie this many characters before the end of a text that is cut


class JsonFormat(JsonLinesFormat):
    """`.json` files: the first character of a file says if it is an array or lines."""

    name = "json"
    suffixes = packed_suffixes(".json")
    must_be_named = True

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[ParsedValue]:
        """See `ObjectFormat.values`."""
        if _is_array(stream.file):
            return _array_values(stream)
        return super().values(stream, options)

    def documents(self, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`; a span is a span of lines."""
        is_array = rows.span is None and _is_array(rows.file)
        return (ObjectFormat if is_array else JsonLinesFormat).documents(self, rows)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: an array cannot."""
        return super().can_be_cut(file) and not _is_array(file)


def _is_array(file: SourceBytes) -> bool:
    return head_of(file, _HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def _array_values(stream: Stream) -> Iterator[ParsedValue]:
    """Yield the values of the array that a stream consists of.

    Latin-1 has one character per byte. So the end of each value is found in the file as Latin-1,
    and each value is then decoded alone: one with invalid UTF-8 or too deep nesting costs no other.

    Raises:
        ValueError: the stream is not an array, is damaged, or is cut short.
    """
    array, number = _ArrayText(stream), 0
    array.separator()  # skips the bracket that opens the array
    after = array.separator() if array.is_at("]") else ","
    while after == ",":
        number, data = number + 1, array.value()
        yield ParsedValue(f"document {number}", decoded(data), len(data))
        del data  # before the next value is read, since it may be large
        after = array.separator()
    if after != "]":
        raise ValueError("expected ',' or ']' after a value")
    if not array.is_at(""):
        raise ValueError("more text follows the end of the array")


class _ArrayText:
    """The text of an array, of which only a value and a chunk are in memory."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._text, self._at = stream, "", 0
        while len(self._text) < len(_MARK) and self._more():
            pass
        self._text = self._text.removeprefix(_MARK)

    def is_at(self, expected: str) -> bool:
        """Return whether the next character is this one; an empty one stands for the end."""
        return self._text[self._at : self._at + 1] == expected

    def separator(self) -> str:
        """Return the next bracket or comma, without the white space around it; empty for none."""
        while True:
            found = next(_SEPARATOR.finditer(self._text, self._at))  # the pattern matches anywhere
            if found.end() < len(self._text) or not self._more():
                self._at = found.end()
                return found[1]

    def value(self) -> bytes:
        """Read the bytes of the next value."""
        while True:
            try:
                end = DECODER.raw_decode(self._text, self._at)[1]
            except json.JSONDecodeError as error:
                is_cut = error.pos > len(self._text) - _LONGEST_WORD or "Unterminated" in error.msg
                if not (is_cut and self._more()):
                    raise ValueError(error.msg) from error
            else:
                if end < len(self._text) or not self._more():  # a number may continue
                    data, self._at = self._text[self._at : end].encode("latin-1"), end
                    return data

    def _more(self) -> bool:
        """Read at least as much as is left, and drop what is used; return False at the end."""
        left = self._text[self._at :]
        if len(left) > MAX_ITEM_BYTES:
            raise ValueError(f"a value longer than {MAX_ITEM_BYTES} bytes")
        data = self._stream.read(max(_CHUNK_BYTES, len(left)))
        self._text, self._at = left + data.decode("latin-1"), 0
        return bool(data)
