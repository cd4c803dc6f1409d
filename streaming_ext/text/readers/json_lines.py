"""JSON Lines: an object a line, plain or packed.

A row is a line, a blank one holds no text. Arrow's parser reads a block of lines at once,
but only a block in which nothing is unusual. The lines of other blocks are read one by one, and the
bad ones are named.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from streaming_ext.format.condition import Kind
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import DocumentBatch, DocumentRows
from streaming_ext.text.documents.files import SourceBytes, Span
from streaming_ext.text.documents.lines import LineBlock, line_blocks, line_from
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
from streaming_ext.text.documents.streams import SpanStream, Stream, codec_of, packed_suffixes

_BLOCK_BYTES = 4 * 2**20  # of a file that is not packed: a block for a sample
_READ_BYTES = 2**20  # of lines that are read one by one
_WINDOW_BYTES = 2**15  # in which brackets are counted: few lines must be looked at alone
_SMALL = 2**15  # bytes of a block: Arrow's parser takes half a millisecond to start
_OPEN, _CLOSE, _RETURN = b"{}\r"
_KINDS: dict[type, Kind] = {bool: "boolean", int: "number", float: "number"}
_BLANK: dict[str, Any] = {}

Columns = tuple[list[pa.LargeStringArray], list[pa.Array]]  # of texts, and those compared


class JsonLinesFormat(ObjectFormat):
    """Files of an object a line."""

    name = "jsonl"
    suffixes = packed_suffixes(".jsonl", ".ndjson")

    def stream(self, file: SourceBytes, span: Span | None, head: int | None = None) -> Stream:
        """See `ObjectFormat.stream`."""
        if span is None:
            return super().stream(file, span, head)
        return SpanStream(file, span, (line_from(file, span[0]), line_from(file, span[1])))

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[Value]:
        """See `ObjectFormat.values`; blank lines are left out."""
        for block in line_blocks(stream, _READ_BYTES):
            yield from (one for one in _values(block, stream) if one.value is not _BLANK)

    def documents(self, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`; messages name line and byte."""
        with self.stream(rows.file, rows.span) as stream:
            for block in line_blocks(stream, rows.batch_bytes):
                columns = _at_once(block, rows.options) if len(block.data) > _SMALL else None
                if columns is None:
                    yield from batches_of_values(_values(block, stream), rows, stream)
                    continue
                positions = block.starts + (stream.origin + block.offset)
                del block  # before the texts are used: a line may be large
                texts, compared = columns
                yield from rows.batches(texts, stream.fraction, (), compared, positions)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: a packed file cannot."""
        return codec_of(file.name) == "none"

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`: the lines that begin in the span, and the byte before."""
        start, end = span
        return ((max(start - 1, 0), line_from(file, end)),) if start < end else ()

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook | None:
        """See `SourceFormat.look`: a file that is not packed has many blocks."""
        look = super().look(file, options)
        if not self.can_be_cut(file):
            return look
        spans = [
            (start, min(start + _BLOCK_BYTES, file.size))
            for start in range(0, file.size, _BLOCK_BYTES)
        ]
        return FileLook(blocks=tuple(Block(None, span[1] - span[0], span) for span in spans))


def _values(block: LineBlock, stream: Stream) -> Iterator[Value]:
    """The value of each line, or its fault; `_BLANK` for a line that holds nothing."""
    origin = f" from byte {stream.start} on" if stream.start else ""
    too_long = {*block.too_long.tolist()}
    ends = zip(block.starts.tolist(), block.ends.tolist(), strict=True)
    for number, (start, end) in enumerate(ends):
        line, byte = bytes(block.data[start:end]), 0
        value: object
        try:
            value = decoded(line) if line.strip() else _BLANK
        except BadValueError as error:
            value, byte = error, error.byte
        if number in too_long:
            value, byte = BadValueError(TOO_LONG), 0
        at = stream.origin + block.offset + start
        yield Value(f"line {block.first_line + number + 1}{origin}, byte {at + byte}", value, 0, at)


def _at_once(block: LineBlock, options: ReadOptions) -> Columns | None:
    """The texts of each line, null for none; None if Arrow may read the lines differently."""
    schema = _schema(block, options)
    if schema is None or len(block.too_long) or (block.ends == block.starts).any():
        return None
    data = np.frombuffer(block.data, np.uint8)
    lasts = block.ends - 1
    lasts = lasts - (data[lasts] == _RETURN)
    if not ((data[block.starts] == _OPEN) & (data[lasts] == _CLOSE)).all():
        return None  # else no line could hold two objects, and none could continue in the next
    if _any_too_deep(block, data):
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
    return (
        [_column(table, column).cast(pa.large_string()) for column in options.columns],
        [_column(table, column) for column in options.compared],
    )


def _any_too_deep(block: LineBlock, data: npt.NDArray[np.uint8]) -> bool:
    is_long = block.ends - block.starts > 2 * MAX_DEPTH
    if not is_long.any():
        return False
    windows = [data[at : at + _WINDOW_BYTES] for at in range(0, len(data), _WINDOW_BYTES)]
    # `[` and `{` are one bit apart
    opens = np.cumsum([0, *(np.count_nonzero((one | 0x20) == _OPEN) for one in windows)])
    near = opens[(block.ends - 1) // _WINDOW_BYTES + 1] - opens[block.starts // _WINDOW_BYTES]
    return any(
        is_too_deep(bytes(block.data[block.starts[line] : block.ends[line]]))
        for line in np.flatnonzero(is_long & (near > MAX_DEPTH))
    )


def _column(table: pa.Table, column: str) -> pa.Array:
    """The field of this name, else the field at the end of the path."""
    texts = table.column(column)
    head, *path = column.split(".")
    if path:
        texts = pc.coalesce(texts, pc.struct_field(table.column(head), path))
    return texts.combine_chunks()


def _schema(block: LineBlock, options: ReadOptions) -> pa.Schema | None:
    """A field for each name and, if it is a path, the one at its end; None for contradictions.

    The first line decides the type of a column that is kept.
    """
    kinds: dict[str, Kind] = dict(options.compared)
    if "value" in kinds.values() and len(block):
        try:
            first = decoded(bytes(block.data[block.starts[0] : block.ends[0]]))
        except BadValueError:
            return None
        for column in [column for column, kind in kinds.items() if kind == "value"]:
            found = value_at(first, column) if isinstance(first, dict) else None
            kinds[column] = _KINDS.get(type(found), "text")
    if "any" in kinds.values() or kinds.keys() & options.columns:
        return None
    types = {column: TYPES[kind] for column, kind in kinds.items()}
    types |= dict.fromkeys(options.columns, pa.string())
    fields = [
        pa.schema([_field(path, kind)])
        for column, kind in types.items()
        for path in ([column], column.split("."))
    ]
    try:
        return pa.unify_schemas(fields, promote_options="permissive")
    except pa.ArrowTypeError:  # a value, and a path that leads through it
        return None


def _field(path: Sequence[str], kind: pa.DataType) -> pa.Field:
    name, *inside = path
    return pa.field(name, pa.struct([_field(inside, kind)]) if inside else kind)
