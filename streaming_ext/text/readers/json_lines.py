"""JSON Lines: an object a line, plain or compressed; a row is a line, a blank one holds no text.

Arrow's parser reads a block of lines at once, and only what it is sure of: where a block holds
anything unusual, its lines are read one by one, and the bad ones are named.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from streaming_ext.format.condition import Kind
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import BATCH_BYTES, DocumentBatch, DocumentRows
from streaming_ext.text.documents.files import SourceBytes, Span
from streaming_ext.text.documents.lines import LineBlock, LinesOfSpan, bytes_of_lines, line_blocks
from streaming_ext.text.documents.objects import (
    MAX_DEPTH,
    TOO_LONG,
    TYPES,
    BadValueError,
    Value,
    batches_of_values,
    decoded,
    is_too_deep,
    value_at,
)
from streaming_ext.text.documents.source_format import Block, FileLook, ObjectFormat
from streaming_ext.text.documents.streams import Stream, codec_of, packed_suffixes

_BLOCK_BYTES = 4 * 2**20  # of a file that is not packed: a span for a sample
_READ_BYTES = 2**20  # of lines that are read one by one
_SMALL = 2**15  # bytes of a block: Arrow's parser takes half a millisecond before it begins
_OPEN, _CLOSE, _RETURN = b"{}\r"
_BLANK: dict[str, Any] = {}

Columns = tuple[list[pa.LargeStringArray], list[pa.Array]]  # of texts, and what is compared


class JsonLinesFormat(ObjectFormat):
    """Files of an object a line."""

    name = "jsonl"
    suffixes = packed_suffixes(".jsonl", ".ndjson")

    def stream(
        self, file: SourceBytes, span: Span | None = None, *, head: int | None = None
    ) -> AbstractContextManager[Stream]:
        """See `ObjectFormat.stream`; of a span its lines."""
        if span is None:
            return super().stream(file, head=head)
        return nullcontext(LinesOfSpan(file, span, BATCH_BYTES))

    def values(self, stream: Stream, where: str) -> Iterator[Value]:
        """See `ObjectFormat.values`; blank lines are left out."""
        for block in line_blocks(stream, _READ_BYTES):
            yield from (one for one in _values(block, stream) if one.value is not _BLANK)

    def documents(
        self, file: SourceBytes, rows: DocumentRows, span: Span | None
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`; messages name line and byte."""
        with self.stream(file, span) as stream:
            for block in line_blocks(stream, rows.batch_bytes):
                columns = _at_once(block, rows.options) if len(block.data) > _SMALL else None
                if columns is None:
                    values = _values(block, stream)
                    yield from batches_of_values(values, rows, fraction=lambda: stream.fraction)
                    continue
                places = block.starts + (stream.origin + block.offset)
                del block  # before the texts are used: a line may be large
                texts, compared = columns
                yield from rows.batches(texts, stream.fraction, (), compared, places)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: a packed file cannot be entered."""
        return codec_of(file.name) == "none"

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`."""
        return bytes_of_lines(file, span)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook | None:
        """See `SourceFormat.look`: a file that is not packed has many blocks."""
        look = super().look(file, options)
        if not self.can_be_cut(file):
            return look
        spans = [
            (start, min(start + _BLOCK_BYTES, file.size))
            for start in range(0, file.size, _BLOCK_BYTES)
        ]
        return FileLook(
            blocks=tuple(Block(None, end - start, (start, end)) for start, end in spans)
        )


def _values(block: LineBlock, stream: Stream) -> Iterator[Value]:
    """Each line's value, or what is wrong with it; `_BLANK` for one that holds nothing."""
    behind = f" from byte {stream.start} on" if stream.start else ""
    ends = zip(block.starts.tolist(), block.ends.tolist(), strict=True)
    for number, (start, end) in enumerate(ends):
        line, byte = bytes(block.data[start:end]), 0
        value: object
        try:
            value = decoded(line) if line.strip() else _BLANK
        except BadValueError as error:
            value, byte = error, error.byte
        if number in block.too_long:
            value = BadValueError(TOO_LONG)
        at = stream.origin + block.offset + start
        yield Value(f"line {block.first_line + number + 1}{behind}, byte {at + byte}", value, 0, at)


def _at_once(block: LineBlock, options: ReadOptions) -> Columns | None:
    """The texts of each line, null where there is none; None where that is not as sure as it is."""
    schema = _schema(options, _kinds(block, options))
    data = np.frombuffer(block.data, np.uint8)
    lasts = block.ends - 1
    if schema is None or (lasts < block.starts).any():
        return None
    lasts = lasts - (data[lasts] == _RETURN)
    if not ((data[block.starts] == _OPEN) & (data[lasts] == _CLOSE)).all():
        return None  # else no line could hold two objects, and none could go on in the next
    for line in np.flatnonzero(block.ends - block.starts > 2 * MAX_DEPTH).tolist():
        one = data[block.starts[line] : block.ends[line]]
        opens = np.count_nonzero((one | 0x20) == _OPEN)  # `[` and `{` are one bit apart
        if opens > MAX_DEPTH and is_too_deep(one.tobytes()):
            return None
    buffer = pa.py_buffer(block.data)
    whole = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, whole, buffer).validate(full=True)
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
    return (
        [_column(table, column).cast(pa.large_string()) for column in options.columns],
        [_column(table, column) for column in options.compared],
    )


def _column(table: pa.Table, column: str) -> pa.Array:
    """What stands under this name or, where nothing does, at the end of the path."""
    texts = table.column(column)
    head, *path = column.split(".")
    if path:
        nested = table.column(head)
        for step in path:
            nested = pc.struct_field(nested, step)
        texts = pc.coalesce(texts, nested)
    return texts.combine_chunks()


def _kinds(block: LineBlock, options: ReadOptions) -> dict[str, Kind]:
    """What each further column holds; of one that is kept, as the first line has it."""
    kinds = dict(options.compared)
    if "value" not in kinds.values() or not len(block):
        return kinds
    try:
        first = decoded(bytes(block.data[block.starts[0] : block.ends[0]]))
    except BadValueError:
        return kinds
    if not isinstance(first, dict):
        return kinds
    for column, kind in kinds.items():
        if kind == "value":
            found = value_at(first, column)
            kinds[column] = (
                "boolean"
                if isinstance(found, bool)
                else "number"
                if isinstance(found, int | float)
                else "text"
            )
    return kinds


def _schema(options: ReadOptions, kinds: Mapping[str, Kind]) -> pa.Schema | None:
    """A field of each name and, where it is a path, the one at its end; None for contradictions."""
    types = {column: TYPES[kind] for column, kind in kinds.items()}
    if {"any", "value"} & set(kinds.values()) or types.keys() & options.columns:
        return None
    types |= dict.fromkeys(options.columns, pa.string())
    columns = [*types]
    fields: dict[str, Any] = {}
    for column in columns:
        fields[column] = types[column]
    for column in columns:
        *path, last = column.split(".")
        inside = fields
        for step in path:
            inside = inside.setdefault(step, {})
            if isinstance(inside, pa.DataType):
                return None  # a value, and a path that leads through it
        if path and inside.setdefault(last, types[column]) != types[column]:
            return None
    return pa.schema(_fields(fields))


def _fields(fields: dict[str, Any]) -> list[pa.Field]:
    return [
        pa.field(name, pa.struct(_fields(inside)) if isinstance(inside, dict) else inside)
        for name, inside in fields.items()
    ]
