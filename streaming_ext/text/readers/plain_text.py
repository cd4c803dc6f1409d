"""Plain text: a file is a document."""

import codecs
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from streaming_ext.errors import UsageError
from streaming_ext.text.documents.compression import PlainStream, packed_suffixes
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.kept_values import option_of
from streaming_ext.text.documents.objects import TOO_LONG
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    MAX_TEXT_BYTES,
    BadDocument,
    Block,
    DocumentBatch,
    FileLook,
    SourceBytes,
)
from streaming_ext.text.documents.text_array import text_of_bytes
from streaming_ext.text.readers.json_lines import JsonLinesFormat
from streaming_ext.text.readers.streams import StreamFormat

_READ_BYTES = 2**24


class PlainTextFormat(StreamFormat):
    """Files of text; the names of columns say nothing here."""

    name = "text"
    suffixes = packed_suffixes(".txt")
    sample_suffix = ".jsonl"

    def is_in_folder(self, name: str) -> bool:
        """None: folders hold such files for other reasons too, so they must be named."""
        return False

    def batches(self, stream: PlainStream, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """See `StreamFormat.batches`; the text is checked with those of other formats."""
        _require_no_condition(rows.options, rows.where)
        empty = pa.nulls(1, pa.large_string())
        others = [empty] * (len(rows.options.columns) - 1)
        pieces: list[bytes] = []
        size = 0
        while data := stream.read(_READ_BYTES):
            size += len(data)
            if size > MAX_TEXT_BYTES:
                bad = BadDocument(0, "the file", TOO_LONG)
                yield from rows.batches([empty, *others], 1.0, [bad])
                return
            pieces.append(data)
        text = text_of_bytes(b"".join(pieces).removeprefix(codecs.BOM_UTF8))
        yield from rows.batches([text, *others], 1.0)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: there is nothing to be known before."""
        _require_no_condition(options, file.name)
        return FileLook(blocks=(Block(1, file.size),), plain=False)

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`: as lines, for a file holds one text."""
        JsonLinesFormat().write(path, texts, options, codec=codec)


def _require_no_condition(options: ReadOptions, where: str) -> None:
    if options.compared:
        asked = " and ".join(dict.fromkeys(map(option_of, options.compared.values())))
        raise UsageError(
            f"{where}: plain text has no columns, and {asked} names {', '.join(options.compared)}."
        )
