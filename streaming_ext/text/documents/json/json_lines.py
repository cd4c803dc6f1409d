"""JSON Lines: an object a line, plain or compressed; a row is a line, a blank one holds no text."""

import codecs
import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa

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
from streaming_ext.text.documents.json.blocks import texts_of_block
from streaming_ext.text.documents.json.line_pieces import LinesOfPiece, bytes_of_lines
from streaming_ext.text.documents.json.lines import LineBlock, line_blocks, line_text
from streaming_ext.text.documents.json.records import (
    BLOCK_BYTES,
    records_of_values,
    values_of_lines,
)
from streaming_ext.text.documents.json.values import (
    BadValueError,
    check_fields,
    object_of,
    sample_of,
)
from streaming_ext.text.documents.local_bytes import local_bytes
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    Block,
    DocumentBatch,
    FileLook,
    Record,
    SourceBytes,
    SourceFormat,
    Span,
)

_LOOK_BYTES = 2**18  # of the beginning, unpacked, for the names of the fields
_LOOK_LINES = 50
_BLOCK_BYTES = 4 * 2**20  # of a file that is not packed: a piece for a sample


class JsonLinesFormat(SourceFormat):
    """Files of an object a line."""

    name = "jsonl"
    suffixes = packed_suffixes(".jsonl", ".ndjson")
    has_records = True
    cuts_records = True

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

    def records(
        self, path: Path, options: ReadOptions, *, name: str, span: Span | None = None
    ) -> Iterator[list[Record]]:
        """See `SourceFormat.records`."""
        if span is None:
            with open_here(path, name=name) as stream:
                values = values_of_lines(stream, options, name=name)
                yield from records_of_values(values, options, name=name)
            return
        with local_bytes(path, name=name) as file:
            values = values_of_lines(LinesOfPiece(file, span, BLOCK_BYTES), options, name=name)
            yield from records_of_values(values, options, name=name)

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
        (texts, compared), bad = texts_of_block(block, rows, partial(_place, block, stream))
        places = block.starts + (stream.origin + block.offset)
        del block  # before the texts are used: a line may be large
        yield from rows.batches(texts, stream.fraction, bad, compared, places)


def _place(block: LineBlock, stream: PlainStream | LinesOfPiece, line: int, byte: int) -> str:
    """Where a byte of a line stands, for people."""
    at = stream.origin + block.offset + int(block.starts[line]) + byte
    return f"{line_text(block.first_line + line, stream)}, byte {at}"


def _require_plain(name: str) -> None:
    if codec_of(name) != "none":
        raise SourceError(f"{name}: a packed file cannot be entered in the middle.")


def _check_head(head: bytes, options: ReadOptions, *, where: str) -> None:
    """Look for the text in the first whole lines; what is wrong with a line is left to its part."""
    *lines, last = head.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if len(head) < _LOOK_BYTES:
        lines.append(last)
    try:
        filled = (line for line in lines if line.strip())
        values = [object_of(line) for line in islice(filled, _LOOK_LINES)]
    except BadValueError as error:
        raise SourceError(f"{where}: {error}.") from error
    check_fields(values, options, where=where)
