"""Avro: object container files; a document is a record. A file can be cut at its blocks.

`fastavro` decodes block by block; the reader of polars holds a file in memory.
"""

import io
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from streaming_ext.base.errors import SourceError, one_line
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.files import SourceBytes, Span, open_buffered
from streaming_ext.text.documents.objects import MAX_ITEM_BYTES, Value
from streaming_ext.text.documents.source_format import ObjectFormat, faults
from streaming_ext.text.documents.streams import Stream, codec_of, packed_suffixes

_SYNC_BYTES = 16  # of the mark after the header, and after each block
_READ_BYTES = 2**18
_FAULTS = (ValueError, EOFError, LookupError, TypeError, ArithmeticError, OSError, zlib.error)


class AvroFormat(ObjectFormat):
    """Avro files, packed or not, whatever the codec of their blocks."""

    name = "avro"
    suffixes = packed_suffixes(".avro")

    def stream(self, file: SourceBytes, span: Span | None, head: int | None = None) -> Stream:
        """See `ObjectFormat.stream`; of a span the header and its blocks."""
        return super().stream(file, span, head) if span is None else _Blocks(file, span)

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[Value]:
        """See `ObjectFormat.values`; a damaged block ends the file."""
        location = "its header"
        try:
            stream.allow(MAX_ITEM_BYTES)
            for block in _opened(io.BufferedReader(stream, _READ_BYTES)):
                at = block.offset + stream.origin
                for number, record in enumerate(block):
                    location = f"document {number + 1} of the block at byte {at}"
                    yield Value(location, record, block.size // block.num_records, at + number)
                stream.allow(MAX_ITEM_BYTES)
        except _FAULTS as error:
            raise SourceError(
                f"{stream.file.name}: no Avro, damaged or cut short after {location} "
                f"({one_line(error)}). Fetch the file again, or leave it out."
            ) from error

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: a packed file cannot."""
        return codec_of(file.name) == "none"

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`: the header, the mark before its blocks, and these."""
        blocks = _Blocks(file, span)
        first = max(blocks.begin - _SYNC_BYTES, blocks.head)
        return (0, blocks.head), (first, max(first, blocks.end))


class _Blocks(Stream):
    """The header of a file, and the blocks that begin in a span of it."""

    def __init__(self, file: SourceBytes, span: Span) -> None:
        super().__init__(file, span[0])
        with faults(file, "Avro"), open_buffered(file, _READ_BYTES) as raw:
            _opened(raw)
            self.head = raw.tell()
        self.begin, self.end = map(self._block_from, span)
        self.origin = self.begin - self.head

    def _block_from(self, at: int) -> int:
        """Where the first block begins that does so at a byte or later."""
        if at <= self.head:
            return self.head
        mark = self.file.read(self.head - _SYNC_BYTES, self.head)
        for begin in range(at - _SYNC_BYTES, self.file.size, _READ_BYTES):
            end = min(begin + _READ_BYTES + _SYNC_BYTES, self.file.size)
            if (found := self.file.read(begin, end).find(mark)) >= 0:
                return begin + found + _SYNC_BYTES
        return self.file.size

    def more(self, size: int) -> bytes:
        """See `Stream.more`."""
        at, end = self.position, self.head
        self.fraction = at / (self.head + self.end - self.begin)
        if at >= self.head:
            at, end = at + self.origin, self.end
        return self.file.read(at, min(at + size, end)) if at < end else b""


def _opened(file: BinaryIO) -> Any:
    """The blocks of a file, after its header."""
    import fastavro
    from fastavro.schema import SchemaParseException

    try:
        blocks = fastavro.block_reader(file, handle_unicode_errors="surrogateescape")
    except (SchemaParseException, LookupError) as error:
        raise ValueError(f"no header: {error}") from error
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
