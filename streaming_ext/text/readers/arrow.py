"""Arrow IPC: files and streams, as `save_to_disk` leaves them; a document is a row.

A file can be cut at its record batches, whose places its footer tells; a stream is read from its
beginning to its end.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming_ext.errors import SourceError, one_line
from streaming_ext.text.documents.columns import Path as ColumnPath
from streaming_ext.text.documents.columns import (
    check_schema,
    column_at,
    compared_at,
    find_columns,
    find_compared,
    table_of,
    texts_at,
)
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    Block,
    DocumentBatch,
    FileLook,
    SeekableBytes,
    SourceBytes,
    SourceFormat,
    Span,
)
from streaming_ext.text.memory import VARIABLE as MEMORY_VARIABLE

_MAGIC = b"ARROW1"  # of a file; a stream has none
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_HEAD_BYTES = 8  # the magic, padded
_TAIL_BYTES = 10  # length of the footer, the magic
_DICTIONARIES, _BATCHES = 2, 3  # fields of the table `Footer` in Arrow's File.fbs
_REQUEST_BYTES = 2**18  # of a file that is not here
_ROWS_A_BATCH = 1000  # of a file that is written for a sample
_FAULTS = (pa.ArrowException, OSError, ValueError, KeyError, struct.error)

# A record batch, the byte that it begins with, and how much of the file is read with it.
_Batches = Iterator[tuple[pa.RecordBatch, int, float]]


class ArrowFormat(SourceFormat):
    """Arrow IPC files and streams."""

    name = "arrow"
    suffixes = (".arrow",)

    def is_in_folder(self, name: str) -> bool:
        """All but what `datasets` keeps of earlier steps beside a saved dataset."""
        kept = name.rpartition("/")[2].startswith("cache-")
        return super().is_in_folder(name) and not kept

    def read(
        self,
        path: Path,
        options: ReadOptions,
        *,
        name: str | None = None,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.read`; a piece is whole record batches."""
        where = name or str(path)
        try:
            raw = pa.OSFile(str(path))
        except FileNotFoundError as error:
            raise SourceError(f"{where}: the file is gone.") from error
        except OSError as error:
            raise SourceError(f"{where}: cannot be read ({one_line(error)}).") from error
        with raw:
            rows = DocumentRows(
                options,
                where=where,
                size=raw.size(),
                batch_bytes=batch_bytes,
                begin=0 if span is None else span[0],
            )
            yield from _batches(raw, rows, span)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: a file can, a stream cannot."""
        return file.read(0, min(len(_MAGIC), file.size)) == _MAGIC

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`: its record batches, and what says how they are read."""
        with _faults(file.name):
            footer, dictionaries, batches = _layout(_anywhere(file))
            batches = [batch for batch in batches if span[0] <= batch[0] < span[1]]
            ends = [(0, _HEAD_BYTES), (footer, file.size)]
            found = sorted({*ends, *dictionaries, *batches})
            if any(before[1] > after[0] for before, after in pairwise(found)):
                raise ValueError("its record batches overlap")
        return tuple(found)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`; one block, for only reading tells how many rows there are."""
        with _faults(file.name):
            schema = _open(_anywhere(file)).schema
        check_schema(schema, options, where=file.name)
        return FileLook(blocks=(Block(None, file.size),), plain=False)

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`."""
        for block in blocks:
            rows = DocumentRows(options, where=file.name, size=file.size, batch_bytes=batch_bytes)
            yield block, _batches(_anywhere(file), rows)

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        table = table_of(texts, options)
        with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_file(raw, table.schema) as writer:
            writer.write_table(table, max_chunksize=_ROWS_A_BATCH)


def _anywhere(file: SourceBytes) -> pa.NativeFile:
    return pa.PythonFile(SeekableBytes(file).buffered(_REQUEST_BYTES), mode="r")


@contextmanager
def _faults(where: str, rows: DocumentRows | None = None) -> Iterator[None]:
    """Name the file, and the row from which on it is damaged."""
    row = 0 if rows is None else rows.row
    try:
        yield
    except _FAULTS as error:
        raise SourceError(
            f"{where}: no whole Arrow file or stream, or damaged from row {row} on "
            f"({one_line(error)}). Fetch it again, or leave it out."
        ) from error
    except MemoryError as error:
        raise SourceError(
            f"{where}: what stands from row {row} on takes more memory than a worker may have. "
            f"Leave the file out, or set {MEMORY_VARIABLE} higher."
        ) from error


def _open(raw: pa.NativeFile) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    head = raw.read(len(_MAGIC))
    raw.seek(0)
    if head == _MAGIC:
        return pa.ipc.open_file(raw)
    raw.seek(max(0, raw.size() - len(_END_OF_STREAM)))
    if raw.read() != _END_OF_STREAM:  # else a stream cut between two batches would pass as whole
        raise pa.ArrowInvalid("it does not end as an Arrow stream does")
    raw.seek(0)
    return pa.ipc.open_stream(raw)


def _read(raw: pa.NativeFile, span: Span | None) -> tuple[pa.Schema, _Batches]:
    """The schema, and the record batches that begin in a span."""
    reader = _open(raw)
    if isinstance(reader, pa.ipc.RecordBatchStreamReader):
        if span is not None:
            raise pa.ArrowInvalid("a stream cannot be entered in the middle")
        return reader.schema, _of_stream(raw, reader)
    begins = [begin for begin, _ in _layout(raw)[2]]
    chosen = [n for n, at in enumerate(begins) if span is None or span[0] <= at < span[1]]
    return reader.schema, (
        (reader.get_batch(n), begins[n], done / len(chosen)) for done, n in enumerate(chosen, 1)
    )


def _of_stream(raw: pa.NativeFile, reader: pa.ipc.RecordBatchStreamReader) -> _Batches:
    begin = raw.tell()
    for batch in reader:
        yield batch, begin, raw.tell() / raw.size()
        begin = raw.tell()


def _batches(
    raw: pa.NativeFile, rows: DocumentRows, span: Span | None = None
) -> Iterator[DocumentBatch]:
    """The documents; a row is named by the byte that its record batch begins with, and its row."""
    options, where = rows.options, rows.where
    with _faults(where):
        schema, batches = _read(raw, span)
    paths = find_columns(schema, options.columns, where=where)
    compared = find_compared(schema, options.compared, where=where)
    while True:
        with _faults(where, rows):
            batch, begin, fraction = next(batches, (None, 0, 1.0))
            if batch is None:
                return
            _require_sound(batch, paths)
            for path in compared:
                batch.column(batch.schema.get_field_index(path[0])).validate(full=True)
            texts, others = texts_at(batch, paths), compared_at(batch, compared)
        places = np.arange(begin, begin + len(batch), dtype=np.int64)
        yield from rows.batches(texts, fraction, compared=others, places=places)


def _require_sound(batch: pa.RecordBatch, paths: Sequence[ColumnPath]) -> None:
    """Refuse offsets that lead out of the file; texts that are no UTF-8 are left to their rows."""
    for path in paths:
        column = batch.column(batch.schema.get_field_index(path[0]))
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            column.validate()
            texts = column_at(batch, path)
            if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
                raise
            large = pa.types.is_large_string(texts.type)
            texts.view(pa.large_binary() if large else pa.binary()).validate(full=True)


def _layout(raw: pa.NativeFile) -> tuple[int, list[Span], list[Span]]:
    """Where the footer of a file begins, and where its dictionaries and its record batches lie."""
    size = raw.size()
    raw.seek(max(0, size - _TAIL_BYTES))
    tail = raw.read(_TAIL_BYTES)
    begin = size - _TAIL_BYTES - int.from_bytes(tail[:4], "little")
    if not tail.endswith(_MAGIC) or begin < _HEAD_BYTES:
        raise ValueError("it has no footer")
    raw.seek(begin)
    footer = raw.read(size - begin)
    dictionaries, batches = (list(_spans(footer, field)) for field in (_DICTIONARIES, _BATCHES))
    if any(not _HEAD_BYTES <= start <= end <= begin for start, end in dictionaries + batches):
        raise ValueError("its footer leads out of the file")
    return begin, dictionaries, batches


def _spans(footer: bytes, number: int) -> Iterator[Span]:
    """The messages that a field of the footer lists, a table of a flat buffer."""
    (root,) = struct.unpack_from("<I", footer)
    fields = root - struct.unpack_from("<i", footer, root)[0]
    (size,) = struct.unpack_from("<H", footer, fields)
    entry = 4 + 2 * number
    offset = struct.unpack_from("<H", footer, fields + entry)[0] if entry < size else 0
    if not offset:
        return
    at = root + offset + struct.unpack_from("<I", footer, root + offset)[0]
    (count,) = struct.unpack_from("<I", footer, at)
    for place in range(at + 4, at + 4 + 24 * count, 24):
        begin, head, body = struct.unpack_from("<qi4xq", footer, place)
        yield begin, begin + head + body
