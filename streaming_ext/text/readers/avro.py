"""Avro: object container files; a document is a record.

`fastavro` decodes block by block; the reader of polars would hold the whole file in memory.
"""

import io
from collections.abc import Iterator
from typing import Any

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.files import Stream, packed_suffixes
from streaming_ext.text.documents.objects import MAX_ITEM_BYTES, ParsedValue
from streaming_ext.text.documents.source_format import ObjectFormat

_READ_BYTES = 2**18


class AvroFormat(ObjectFormat):
    """Avro files, packed or not, whatever the codec of their blocks."""

    name = "avro"
    suffixes = packed_suffixes(".avro")

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[ParsedValue]:
        """See `ObjectFormat.values`; a damaged block ends the file."""
        import fastavro

        stream.allow(MAX_ITEM_BYTES)
        file = io.BufferedReader(stream, _READ_BYTES)
        blocks = fastavro.block_reader(file, handle_unicode_errors="surrogateescape")
        if _refers_to_itself(blocks.writer_schema, ()):
            raise ValueError("a schema that refers to itself nests values without end")
        for block in blocks:
            for number, record in enumerate(block):
                location = f"document {number + 1} of the block at byte {block.offset}"
                yield ParsedValue(location, record, block.size // block.num_records)
            stream.allow(MAX_ITEM_BYTES)


def _refers_to_itself(schema: Any, within: tuple[str, ...]) -> bool:
    """Return whether a named type holds itself; `fastavro` follows such values to any depth."""
    if isinstance(schema, dict):
        within = (*within, schema["name"]) if "name" in schema else within
        fields = [field["type"] for field in schema.get("fields", ())]
        schema = [schema.get("items"), schema.get("values"), schema["type"], *fields]
    if isinstance(schema, list):
        return any(_refers_to_itself(one, within) for one in schema)
    return schema in within
