"""Arrow IPC: files and streams, as `save_to_disk` leaves them; a document is a row."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming_ext.errors import SourceError, one_line
from streaming_ext.text.documents.arrow.messages import (
    END_OF_STREAM,
    MAGIC,
    JoinedRanges,
    batch_begins,
    needed_bytes,
    ranges_of,
)
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
from streaming_ext.text.documents.local_bytes import local_bytes
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

_REQUEST_BYTES = 2**18  # of a file that is not here
_ROWS_A_BATCH = 1000  # of a file that is written for a sample
_FAULTS = (pa.ArrowException, OSError, ValueError, KeyError)


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
        """See `SourceFormat.read`."""
        where = name or str(path)
        if span is not None:
            yield from _piece(path, options, span, where=where, batch_bytes=batch_bytes)
            return
        try:
            raw = pa.OSFile(str(path))
        except FileNotFoundError as error:
            raise SourceError(f"{where}: the file is gone.") from error
        except OSError as error:
            raise SourceError(f"{where}: cannot be read ({one_line(error)}).") from error
        with raw:
            rows = DocumentRows(options, where=where, size=raw.size(), batch_bytes=batch_bytes)
            begins: list[int] = []
            with suppress(SourceError), local_bytes(path, name=where) as file:
                begins = batch_begins(file)  # what is damaged is told with its row, by the reader
            yield from _batches(lambda: _all_of(raw), options, rows, where=where, begins=begins)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: at record batches."""
        return True

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`: its record batches, and what says how they are read."""
        return needed_bytes(file, span)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`; one block, for only reading tells how many rows there are."""
        raw = pa.PythonFile(SeekableBytes(file).buffered(_REQUEST_BYTES), mode="r")
        try:
            schema = _open(raw).schema
        except _FAULTS as error:
            raise _damaged(file.name, 0, error) from error
        check_schema(schema, options, where=file.name)
        return FileLook(blocks=(Block(None, file.size),), plain=False)

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`."""
        for block in blocks:
            raw = pa.PythonFile(SeekableBytes(file).buffered(_REQUEST_BYTES), mode="r")
            rows = DocumentRows(options, where=file.name, size=file.size, batch_bytes=batch_bytes)
            yield block, _batches(partial(_all_of, raw), options, rows, where=file.name)

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        table = table_of(texts, options)
        with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_stream(raw, table.schema) as writer:
            writer.write_table(table, max_chunksize=_ROWS_A_BATCH)


def _open(raw: pa.NativeFile) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    head = raw.read(len(MAGIC))
    raw.seek(0)
    if head == MAGIC:
        return pa.ipc.open_file(raw)
    raw.seek(max(0, raw.size() - len(END_OF_STREAM)))
    if raw.read() != END_OF_STREAM:  # else a stream cut between two batches would pass as whole
        raise pa.ArrowInvalid("it does not end as an Arrow stream does")
    raw.seek(0)
    return pa.ipc.open_stream(raw)


def _damaged(where: str, row: int, error: BaseException) -> SourceError:
    return SourceError(
        f"{where}: no whole Arrow file or stream, or damaged from row {row} on "
        f"({one_line(error)}). Fetch it again, or leave it out."
    )


_Batches = Iterator[tuple[pa.RecordBatch, float]]


def _all_of(raw: pa.NativeFile) -> tuple[pa.Schema, _Batches]:
    """The schema, each record batch, and how much of the file is read with it."""
    reader = _open(raw)
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        count = reader.num_record_batches
        return reader.schema, ((reader.get_batch(n), (n + 1) / count) for n in range(count))
    return reader.schema, ((batch, raw.tell() / raw.size()) for batch in reader)


def _some_of(raw: JoinedRanges) -> tuple[pa.Schema, _Batches]:
    """The same of a piece."""
    reader = pa.ipc.open_stream(pa.PythonFile(raw, mode="r"))
    return reader.schema, ((batch, raw.used / max(raw.size, 1)) for batch in reader)


def _columns(
    opened: Callable[[], tuple[pa.Schema, _Batches]], options: ReadOptions, where: str
) -> Iterator[tuple[list[pa.LargeStringArray], list[pa.Array], float]]:
    """The texts of each record batch, what is compared, and how much of the file is read then."""
    row = 0
    try:
        schema, batches = opened()
        paths = find_columns(schema, options.columns, where=where)
        compared = find_compared(schema, options.compared, where=where)
        for batch, fraction in batches:
            _require_sound(batch, paths)
            _require_valid(batch, compared)
            yield texts_at(batch, paths), compared_at(batch, compared), fraction
            row += len(batch)
    except _FAULTS as error:
        raise _damaged(where, row, error) from error
    except MemoryError as error:
        raise SourceError(
            f"{where}: what stands from row {row} on takes more memory than a worker may have. "
            f"Leave the file out, or set {MEMORY_VARIABLE} higher."
        ) from error


def _piece(
    path: Path, options: ReadOptions, span: Span, *, where: str, batch_bytes: int
) -> Iterator[DocumentBatch]:
    """The rows of the record batches that begin in a span."""
    with local_bytes(path, name=where) as file:
        raw = JoinedRanges(file, ranges_of(file, span))
        rows = DocumentRows(
            options, where=where, size=raw.size, batch_bytes=batch_bytes, begin=span[0]
        )
        begins = batch_begins(file, span)
        yield from _batches(lambda: _some_of(raw), options, rows, where=where, begins=begins)


def _require_valid(batch: pa.RecordBatch, paths: Sequence[ColumnPath]) -> None:
    for path in paths:
        batch.column(batch.schema.get_field_index(path[0])).validate(full=True)


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


def _batches(
    opened: Callable[[], tuple[pa.Schema, _Batches]],
    options: ReadOptions,
    rows: DocumentRows,
    *,
    where: str,
    begins: Sequence[int] = (),
) -> Iterator[DocumentBatch]:
    """The documents; a row is named by the byte that its record batch begins with, and its row."""
    for number, (texts, compared, fraction) in enumerate(_columns(opened, options, where)):
        places = np.arange(len(texts[0]), dtype=np.int64)
        places += begins[number] if number < len(begins) else rows.row
        yield from rows.batches(texts, fraction, compared=compared, places=places)
