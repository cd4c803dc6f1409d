"""JSON Lines: an object a line, plain or compressed; a row is a line, a blank one holds no text.

Arrow's parser reads blocks of lines at once, and takes only what it is sure of: where a block holds
anything unusual, its lines are read one by one, and the first bad one is named.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import (
    PlainStream,
    codec_of,
    open_anywhere,
    open_here,
    pack,
    packed_suffixes,
)
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.json.line_pieces import LinesOfPiece, bytes_of_lines
from streaming_ext.text.documents.json.lines import LineBlock, line_blocks, line_text
from streaming_ext.text.documents.json.values import (
    TOO_LONG,
    TYPES,
    BadValueError,
    Texts,
    check_fields,
    columns_of,
    nothing_of,
    object_of,
    sample_of,
    texts_of,
)
from streaming_ext.text.documents.local_bytes import local_bytes
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    BadDocument,
    Block,
    DocumentBatch,
    FileLook,
    SourceBytes,
    SourceFormat,
    Span,
)

_LOOK_BYTES = 2**18  # of the beginning, unpacked, for the names of the fields
_LOOK_LINES = 50
_BLOCK_BYTES = 4 * 2**20  # of a file that is not packed: a piece for a sample
_Columns = tuple[list[pa.LargeStringArray], list[pa.Array]]  # of texts, and what is compared
_OPEN, _CLOSE, _RETURN = b"{}\r"


class JsonLinesFormat(SourceFormat):
    """Files of an object a line."""

    name = "jsonl"
    suffixes = packed_suffixes(".jsonl", ".ndjson")

    def read(
        self,
        path: Path,
        options: ReadOptions,
        *,
        name: str | None = None,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.read`; the message names line and byte."""
        where = name or str(path)
        size = path.stat().st_size if path.is_file() else 0
        rows = DocumentRows(options, where=where, size=size, batch_bytes=batch_bytes)
        if span is None:
            with open_here(path, name=where) as stream:
                yield from _batches(stream, rows)
            return
        _require_plain(where)
        with local_bytes(path, name=where) as file:
            yield from _batches(LinesOfPiece(file, span, batch_bytes), rows)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: a packed file cannot be entered."""
        return codec_of(file.name) == "none"

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`."""
        _require_plain(file.name)
        return bytes_of_lines(file, span)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: the first lines name the fields."""
        with open_anywhere(file) as stream:
            _check_head(stream.read(_LOOK_BYTES), options, where=file.name)
        codec = codec_of(file.name)
        starts = range(0, file.size, _BLOCK_BYTES if codec == "none" else max(file.size, 1))
        return FileLook(
            blocks=tuple(Block(None, min(starts.step, file.size - start)) for start in starts),
            plain=False,
            codec=codec,
        )

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`: the lines that begin in a block."""
        for block in blocks:
            rows = DocumentRows(options, where=file.name, size=file.size, batch_bytes=batch_bytes)
            if codec_of(file.name) == "none":
                start = block * _BLOCK_BYTES
                span = (start, min(start + _BLOCK_BYTES, file.size))
                yield block, _batches(LinesOfPiece(file, span, batch_bytes), rows)
            else:
                with open_anywhere(file) as stream:
                    yield block, _batches(stream, rows)

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        lines = (
            json.dumps(document, ensure_ascii=False).encode() + b"\n"
            for document in sample_of(texts, options)
        )
        pack(b"".join(lines), path, codec)


def _batches(stream: PlainStream | LinesOfPiece, rows: DocumentRows) -> Iterator[DocumentBatch]:
    options = rows.options
    skip = options.on_bad_document == "skip"
    for block in line_blocks(stream, block_bytes=rows.batch_bytes, name=rows.where, skip_long=skip):
        at_once = _texts_at_once(block, options)
        bad: list[BadDocument] = []
        if at_once is None:
            at_once, bad = _texts_one_by_one(block, stream, rows)
        columns, compared = at_once
        yield from rows.batches(columns, stream.fraction, bad, compared)


def _texts_at_once(block: LineBlock, options: ReadOptions) -> _Columns | None:
    """The texts of each line, null where there is none; None where that is not as sure as it is."""
    schema = _schema(options)
    data = np.frombuffer(block.data, np.uint8)
    lasts = block.ends - 1
    if schema is None or (lasts < block.starts).any():
        return None
    returns = data[lasts] == _RETURN
    lasts = lasts - returns
    if not ((data[block.starts] == _OPEN) & (data[lasts] == _CLOSE)).all():
        return None  # else no line could hold two objects, and none could go on in the next
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


def _schema(options: ReadOptions) -> pa.Schema | None:
    """A field of each name and, where it is a path, the one at its end; None for contradictions."""
    types = {column: TYPES[kind] for column, kind in options.compared.items()}
    if "any" in options.compared.values() or types.keys() & options.columns:
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


def _texts_one_by_one(
    block: LineBlock, stream: PlainStream | LinesOfPiece, rows: DocumentRows
) -> tuple[_Columns, list[BadDocument]]:
    """The texts of each line, and the lines that are bad."""
    options = rows.options
    found: list[Texts] = []
    bad: list[BadDocument] = []
    nothing = nothing_of(options)
    for line, (start, end) in enumerate(zip(block.starts, block.ends, strict=True)):
        data = bytes(block.data[int(start) : int(end)])
        try:
            if line in block.too_long:
                raise BadValueError(TOO_LONG)  # noqa: TRY301
            found.append(texts_of(object_of(data), options) if data.strip() else nothing)
        except BadValueError as error:
            number = block.first_line + line
            at = stream.origin + block.offset + int(start) + error.byte
            one = BadDocument(number, f"{line_text(number, stream)}, byte {at}", str(error))
            rows.refuse(one)
            bad.append(one)
            found.append(nothing)
    return columns_of(found, options), bad


def _require_plain(name: str) -> None:
    if codec_of(name) != "none":
        raise SourceError(f"{name}: a packed file cannot be entered in the middle.")


def _check_head(head: bytes, options: ReadOptions, *, where: str) -> None:
    """Look for the text in the first whole lines; what is wrong with a line is left to its part."""
    *lines, last = head.split(b"\n")
    if len(head) < _LOOK_BYTES:
        lines.append(last)
    try:
        values = [
            object_of(line.removeprefix(b"\xef\xbb\xbf"))
            for line in [line for line in lines if line.strip()][:_LOOK_LINES]
        ]
    except BadValueError as error:
        raise SourceError(f"{where}: {error}.") from error
    check_fields(values, options, where=where)
