"""JSON Lines: an object a line, plain or compressed; a row is a line, a blank one holds no text.

Arrow's parser reads a block of lines at once, and only what it is sure of: where a block holds
anything unusual, its lines are read one by one, and the bad ones are named.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import (
    PlainStream,
    Stream,
    codec_of,
    pack,
    packed_suffixes,
)
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.lines import LineBlock, LinesOfPiece, bytes_of_lines, line_blocks
from streaming_ext.text.documents.local_bytes import local_bytes
from streaming_ext.text.documents.objects import (
    MAX_DEPTH,
    TOO_DEEP,
    TOO_LONG,
    TYPES,
    BadValueError,
    Value,
    batches_of_values,
    records_of_values,
    value_at,
)
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    Block,
    DocumentBatch,
    FileLook,
    Record,
    SourceBytes,
    Span,
)
from streaming_ext.text.filters.condition import Kind
from streaming_ext.text.readers.streams import ObjectFormat

_BLOCK_BYTES = 4 * 2**20  # of a file that is not packed: a piece for a sample
_READ_BYTES = 2**20  # of lines that are read one by one
_SMALL = 2**15  # bytes of a block: Arrow's parser takes half a millisecond before it begins
_OPEN, _CLOSE, _RETURN = b"{}\r"
_BLANK: dict[str, Any] = {}
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_MOST_DIGITS = 4000  # of a whole number; Python refuses more

Columns = tuple[list[pa.LargeStringArray], list[pa.Array]]  # of texts, and what is compared


class JsonLinesFormat(ObjectFormat):
    """Files of an object a line."""

    name = "jsonl"
    suffixes = packed_suffixes(".jsonl", ".ndjson")
    cuts_records = True

    def values(self, stream: Stream, where: str) -> Iterator[Value]:
        """See `ObjectFormat.values`; blank lines are left out."""
        for block in line_blocks(stream, _READ_BYTES):
            yield from (one for one in _values(block, stream) if one.value is not _BLANK)

    def batches(
        self, stream: PlainStream | LinesOfPiece, rows: DocumentRows
    ) -> Iterator[DocumentBatch]:
        """See `StreamFormat.batches`; messages name line and byte."""
        for block in line_blocks(stream, rows.batch_bytes):
            places = block.starts + (stream.origin + block.offset)
            columns = _at_once(block, rows.options) if len(block.data) > _SMALL else None
            if columns is not None:
                del block  # before the texts are used: a line may be large
                texts, compared = columns
                yield from rows.batches(texts, stream.fraction, (), compared, places)
                continue
            values = _values(block, stream)
            yield from batches_of_values(
                values, rows, fraction=lambda: stream.fraction, places=places
            )

    def read(
        self,
        path: Path,
        options: ReadOptions,
        *,
        name: str | None = None,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.read`."""
        where = name or str(path)
        if span is None:
            yield from super().read(path, options, name=name, batch_bytes=batch_bytes)
            return
        _require_plain(where)
        with local_bytes(path, name=where) as file:
            rows = DocumentRows(options, where=where, size=file.size, batch_bytes=batch_bytes)
            yield from self.batches(LinesOfPiece(file, span, batch_bytes), rows)

    def records(
        self, path: Path, options: ReadOptions, *, name: str, span: Span | None = None
    ) -> Iterator[list[Record]]:
        """See `SourceFormat.records`."""
        if span is None:
            yield from super().records(path, options, name=name)
            return
        with local_bytes(path, name=name) as file:
            values = self.values(LinesOfPiece(file, span, _READ_BYTES), name)
            yield from records_of_values(values, options, name=name)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: a packed file cannot be entered."""
        return codec_of(file.name) == "none"

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`."""
        _require_plain(file.name)
        return bytes_of_lines(file, span)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: a file that is not packed has many blocks."""
        look = super().look(file, options)
        if look.codec != "none":
            return look
        starts = range(0, file.size, _BLOCK_BYTES)
        blocks = tuple(Block(None, min(_BLOCK_BYTES, file.size - start)) for start in starts)
        return FileLook(blocks=blocks, plain=False)

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`: the lines that begin in a block."""
        if codec_of(file.name) != "none":
            yield from super().read_blocks(file, options, blocks, batch_bytes=batch_bytes)
            return
        for block in blocks:
            rows = DocumentRows(options, where=file.name, size=file.size, batch_bytes=batch_bytes)
            span = (block * _BLOCK_BYTES, min((block + 1) * _BLOCK_BYTES, file.size))
            yield block, self.batches(LinesOfPiece(file, span, batch_bytes), rows)

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        lines = (
            json.dumps({options.columns[0]: text.as_py()}, ensure_ascii=False).encode() + b"\n"
            for text in texts
        )
        pack(b"".join(lines), path, codec)


def _require_plain(name: str) -> None:
    if codec_of(name) != "none":
        raise SourceError(f"{name}: a packed file cannot be entered in the middle.")


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
        at = stream.origin + block.offset + start + byte
        yield Value(f"line {block.first_line + number + 1}{behind}, byte {at}", value)


def decoded(data: bytes) -> object:
    """The value that some bytes of JSON spell.

    Raises:
        BadValueError: they spell none.
    """
    if is_too_deep(data):
        raise BadValueError(TOO_DEEP)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _decoded_by_python(data)


def _decoded_by_python(data: bytes) -> object:
    """What orjson refuses: NaN, halves of surrogate pairs, or no JSON; with the place of that."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadValueError("no valid UTF-8", error.start) from error
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode())
        raise BadValueError(f"no valid JSON ({error.msg})", at) from error
    except RecursionError as error:
        raise BadValueError(TOO_DEEP) from error


def _whole_number(digits: str) -> float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


_DECODER = json.JSONDecoder(parse_int=_whole_number)


def is_too_deep(data: bytes) -> bool:
    """Whether values are nested deeper than is read; brackets within strings do not count."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    found = np.frombuffer(brackets, np.uint8)
    steps = np.where((found == ord("[")) | (found == ord("{")), 1, -1)
    return int(np.cumsum(steps).max(initial=0)) > MAX_DEPTH


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
