"""JSON: a file that is one array of objects, read in pieces; or, by its first character, lines."""

import codecs
import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import (
    PlainStream,
    codec_of,
    open_anywhere,
    open_here,
    pack,
    packed_suffixes,
    whole_in_head,
)
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.json.array_items import ArrayItems
from streaming_ext.text.documents.json.blocks import texts_of_block
from streaming_ext.text.documents.json.json_lines import JsonLinesFormat
from streaming_ext.text.documents.json.lines import LineBlock
from streaming_ext.text.documents.json.values import (
    BadValueError,
    check_fields,
    object_of,
    sample_of,
)
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    MAX_BATCH_ROWS,
    MAX_TEXT_BYTES,
    Block,
    DocumentBatch,
    FileLook,
    SourceBytes,
    SourceFormat,
    Span,
)

_HEAD_BYTES = 2**12  # in which the first character stands
_LOOK_DOCUMENTS = 50


class JsonFormat(SourceFormat):
    """`.json` files: an array of objects, or an object a line."""

    name = "json"
    suffixes = packed_suffixes(".json")
    _lines = JsonLinesFormat()

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
        """See `SourceFormat.read`; the message names document and byte."""
        where = name or str(path)
        if span is None:
            with open_here(path, name=where) as stream:
                if _is_array(stream):
                    size = path.stat().st_size
                    rows = DocumentRows(options, where=where, size=size, batch_bytes=batch_bytes)
                    with open_here(path, name=where) as again:
                        yield from _batches(again, rows)
                    return
        yield from self._lines.read(path, options, name=where, span=span, batch_bytes=batch_bytes)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: an object a line can, an array cannot."""
        with open_anywhere(file) as stream:
            is_array = _is_array(stream)
        return not is_array and self._lines.can_be_cut(file)

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`; of lines."""
        return self._lines.needed(file, options, span)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: the first documents name the fields."""
        with open_anywhere(file) as stream:
            if not _is_array(stream):
                return self._lines.look(file, options)
        with open_anywhere(file) as stream:
            items = whole_in_head(partial(ArrayItems, where=file.name), stream)
            first = list(islice(items, _LOOK_DOCUMENTS))
        try:
            values = [object_of(value or b"") for value in first]
        except BadValueError as error:
            raise SourceError(f"{file.name}: {error}.") from error
        check_fields(values, options, where=file.name)
        return FileLook(
            blocks=(Block(None, file.size),), plain=False, codec=codec_of(file.name)
        )  # fmt: skip

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`."""
        with open_anywhere(file) as stream:
            is_array = _is_array(stream)
        if not is_array:
            yield from self._lines.read_blocks(file, options, blocks, batch_bytes=batch_bytes)
            return
        for block in blocks:
            rows = DocumentRows(options, where=file.name, size=file.size, batch_bytes=batch_bytes)
            with open_anywhere(file) as stream:
                yield block, _batches(stream, rows)

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        documents = list(sample_of(texts, options))
        pack(json.dumps(documents, ensure_ascii=False, indent=0).encode(), path, codec)


def _is_array(stream: PlainStream) -> bool:
    head = stream.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8)
    return head.lstrip().startswith(b"[")


def _batches(stream: PlainStream, rows: DocumentRows) -> Iterator[DocumentBatch]:
    for block, bytes_ in _blocks(ArrayItems(stream, rows.where), rows.batch_bytes):
        (texts, compared), bad = texts_of_block(block, rows, partial(_place, block, bytes_))
        del block  # before the texts are used: a value may be large
        yield from rows.batches(texts, stream.fraction, bad, compared)


def _place(block: LineBlock, starts: Sequence[int], value: int, byte: int) -> str:
    """Where a byte of a value stands, for people."""
    return f"document {block.first_line + value + 1}, byte {starts[value] + byte}"


def _blocks(items: ArrayItems, block_bytes: int) -> Iterator[tuple[LineBlock, list[int]]]:
    """The values as lines, and the byte of the file that each begins with."""
    values: list[bytes] = []
    starts: list[int] = []
    too_long: list[int] = []
    size = 0

    def block() -> tuple[LineBlock, list[int]]:
        # ends: (values,), in the values end to end with a newline behind each
        ends = np.cumsum([len(value) + 1 for value in values], dtype=np.int64) - 1
        begins = np.concatenate([[0], ends[:-1] + 1])
        data = values[0] if len(values) == 1 else b"\n".join(values)
        made = LineBlock(
            memoryview(data), begins, ends, items.number - len(values), 0, tuple(too_long)
        )
        own = list(starts)
        for held in (values, starts, too_long):
            held.clear()
        return made, own

    for item in items:
        length = len(item or b"")
        if values and (size + length > block_bytes or len(values) == MAX_BATCH_ROWS):
            yield block()
            size = 0
        if item is None or length > MAX_TEXT_BYTES:
            too_long.append(len(values))
            item = b""  # noqa: PLW2901 - not kept
        values.append(item)
        starts.append(items.start)
        size += length
        del item
    if values:
        yield block()
