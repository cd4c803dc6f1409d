"""Plain text: a file is a document."""

import codecs
from collections.abc import Iterator

import pyarrow as pa

from streaming_ext.base.errors import UsageError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import (
    MAX_TEXT_BYTES,
    BadDocument,
    DocumentBatch,
    DocumentRows,
)
from streaming_ext.text.documents.files import SourceBytes, Span
from streaming_ext.text.documents.kept_values import option_of
from streaming_ext.text.documents.objects import TOO_LONG
from streaming_ext.text.documents.source_format import Block, FileLook, SourceFormat
from streaming_ext.text.documents.streams import open_stream, packed_suffixes
from streaming_ext.text.documents.text_array import text_of_bytes

_READ_BYTES = 2**24


class PlainTextFormat(SourceFormat):
    """Files of text; the names of columns say nothing here."""

    name = "text"
    suffixes = packed_suffixes(".txt")
    must_be_named = True
    has_records = False

    def documents(
        self, file: SourceBytes, rows: DocumentRows, span: Span | None
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`; the text is checked with those of other formats."""
        self.look(file, rows.options)
        pieces: list[bytes] = []
        size = 0
        bad: list[BadDocument] = []
        with open_stream(file) as stream:
            while not bad and (data := stream.read(_READ_BYTES)):
                pieces.append(data)
                size += len(data)
                if size > MAX_TEXT_BYTES:
                    bad = [BadDocument(0, "the file", TOO_LONG)]
        empty = pa.nulls(1, pa.large_string())
        text = empty if bad else text_of_bytes(b"".join(pieces).removeprefix(codecs.BOM_UTF8))
        yield from rows.batches([text, *[empty] * (len(rows.options.columns) - 1)], 1.0, bad)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: there is nothing to be known before."""
        if options.compared:
            asked = " and ".join(dict.fromkeys(map(option_of, options.compared.values())))
            raise UsageError(
                f"{file.name}: plain text has no columns, and {asked} names "
                f"{', '.join(options.compared)}."
            )
        return FileLook(blocks=(Block(1, file.size),))
