"""Avro: object container files; a document is a record. A file can be cut at its blocks.

`fastavro` decodes block by block; the reader of polars holds a file in memory.
"""

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.files import (
    SourceBytes,
    Span,
    SpanStream,
    Stream,
    codec_of,
    open_buffered,
    packed_suffixes,
)
from streaming_ext.text.documents.objects import MAX_ITEM_BYTES, Value
from streaming_ext.text.documents.source_format import ObjectFormat, faults

_SYNC_BYTES = 16  # of the mark after the header, and after each block
_READ_BYTES = 2**18


class AvroFormat(ObjectFormat):
    """Avro files, packed or not, whatever the codec of their blocks."""

    name = "avro"
    suffixes = packed_suffixes(".avro")

    def stream(self, file: SourceBytes, span: Span | None, head: int | None = None) -> Stream:
        """See `ObjectFormat.stream`; of a span the header and its blocks."""
        if span is None:
            return super().stream(file, span, head)
        header, blocks = _header_and_blocks(file, span)
        return SpanStream(file, span, (0, header), blocks)

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[Value]:
        """See `ObjectFormat.values`; a damaged block ends the file."""
        stream.allow(MAX_ITEM_BYTES)
        for block in _opened(io.BufferedReader(stream, _READ_BYTES)):
            at = block.offset + stream.origin
            for number, record in enumerate(block):
                location = f"document {number + 1} of the block at byte {at}"
                yield Value(location, record, block.size // block.num_records, at + number)
            stream.allow(MAX_ITEM_BYTES)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: a packed file cannot."""
        return codec_of(file.name) == "none"

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`: the header, the mark before its blocks, and these."""
        header, (begin, end) = _header_and_blocks(file, span)
        first = max(begin - _SYNC_BYTES, header)
        return (0, header), (first, max(first, end))


def _header_and_blocks(file: SourceBytes, span: Span) -> tuple[int, Span]:
    """Where the header ends, and the bytes of the blocks that begin in a span."""
    with faults(file, "avro"), open_buffered(file, _READ_BYTES) as raw:
        _opened(raw)
        header = raw.tell()
    mark = file.read(header - _SYNC_BYTES, header)
    begin, end = (_block_from(file, at, header, mark) for at in span)
    return header, (begin, end)


def _block_from(file: SourceBytes, at: int, header: int, mark: bytes) -> int:
    """Where the first block begins that does so at a byte or later."""
    if at <= header:
        return header
    for begin in range(at - _SYNC_BYTES, file.size, _READ_BYTES):
        end = min(begin + _READ_BYTES + _SYNC_BYTES, file.size)
        if (found := file.read(begin, end).find(mark)) >= 0:
            return begin + found + _SYNC_BYTES
    return file.size


def _opened(file: BinaryIO) -> Any:
    """The blocks of a file, after its header."""
    import fastavro

    blocks = fastavro.block_reader(file, handle_unicode_errors="surrogateescape")
    if _refers_to_itself(blocks.writer_schema, ()):
        raise ValueError("a schema that refers to itself nests values without end")
    return blocks


def _refers_to_itself(schema: Any, within: tuple[str, ...]) -> bool:
    """Whether a named type holds itself; `fastavro` follows such values however deep they go."""
    if isinstance(schema, dict):
        within = (*within, schema["name"]) if "name" in schema else within
        fields = [field["type"] for field in schema.get("fields", ())]
        schema = [schema.get("items"), schema.get("values"), schema["type"], *fields]
    if isinstance(schema, list):
        return any(_refers_to_itself(one, within) for one in schema)
    return schema in within
