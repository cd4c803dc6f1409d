"""Plain text: a file is a document."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming_ext.errors import SourceError, UsageError
from streaming_ext.text.documents.compression import (
    PlainStream,
    open_anywhere,
    open_here,
    packed_suffixes,
)
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.json.json_lines import JsonLinesFormat
from streaming_ext.text.documents.json.values import TOO_LONG
from streaming_ext.text.documents.kept_values import option_of
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    MAX_TEXT_BYTES,
    BadDocument,
    Block,
    DocumentBatch,
    FileLook,
    SourceBytes,
    SourceFormat,
    Span,
)

_READ_BYTES = 2**24
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class PlainTextFormat(SourceFormat):
    """Files of text; the names of columns say nothing here."""

    name = "text"
    suffixes = packed_suffixes(".txt")
    sample_suffix = ".jsonl"
    _samples = JsonLinesFormat()

    def is_in_folder(self, name: str) -> bool:
        """None: folders hold such files for other reasons too, so they must be named."""
        return False

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
        if span is not None:
            raise SourceError(f"{where}: a file that is one document cannot be cut.")
        _require_no_condition(options, where)
        with open_here(path, name=where) as stream:
            size = path.stat().st_size
            yield from _batches(stream, DocumentRows(options, where=where, size=size))

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: there is nothing to be known before."""
        _require_no_condition(options, file.name)
        return FileLook(blocks=(Block(1, file.size),), plain=False)

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`."""
        for block in blocks:
            with open_anywhere(file) as stream:
                rows = DocumentRows(options, where=file.name, size=file.size)
                yield block, _batches(stream, rows)

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`: as lines, for a file holds one text."""
        self._samples.write(path, texts, options, codec=codec)


def _require_no_condition(options: ReadOptions, where: str) -> None:
    if options.compared:
        asked = " and ".join(dict.fromkeys(map(option_of, options.compared.values())))
        raise UsageError(
            f"{where}: plain text has no columns, and {asked} names {', '.join(options.compared)}."
        )


def _batches(stream: PlainStream, rows: DocumentRows) -> Iterator[DocumentBatch]:
    pieces: list[bytes] = []
    size = 0
    while data := stream.read(_READ_BYTES):
        size += len(data)
        if size > MAX_TEXT_BYTES:
            bad = BadDocument(0, "the file", TOO_LONG)
            rows.refuse(bad)
            yield from rows.batches(_columns(None, rows), 1.0, [bad])
            return
        pieces.append(data)
    yield from rows.batches(_columns(b"".join(pieces), rows), 1.0)


def _columns(data: bytes | None, rows: DocumentRows) -> list[pa.LargeStringArray]:
    """The text in the first column, as it is: it is checked with those of other formats."""
    empty = pa.nulls(1, pa.large_string())
    if data is None:
        text = empty
    else:
        data = data.removeprefix(_BYTE_ORDER_MARK)
        ends = pa.py_buffer(np.array([0, len(data)], np.int64))
        text = pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(data))
    return [text] + [empty] * (len(rows.options.columns) - 1)
