"""Arrow IPC: files and streams, as `save_to_disk` leaves them; a document is a row."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming_ext.errors import SourceError, one_line
from streaming_ext.text.documents.arrow_messages import (
    END_OF_STREAM,
    MAGIC,
    JoinedRanges,
    needed_bytes,
    ranges_of,
)
from streaming_ext.text.documents.columns import check_column
from streaming_ext.text.documents.local_bytes import local_bytes
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    MAX_TEXT_BYTES,
    Block,
    DocumentBatch,
    FileLook,
    SeekableBytes,
    SourceBytes,
    SourceFormat,
    Span,
)
from streaming_ext.text.documents.text_array import cut_by_bytes, text_buffers
from streaming_ext.text.memory import VARIABLE as MEMORY_VARIABLE

_LARGEST_GROWTH = 1000  # text for a byte of file, as buffers may be packed
_ALWAYS_ALLOWED_BYTES = 2**30
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
            yield from _batches(
                lambda: _all_of(raw), raw.size(), options, where=where, batch_bytes=batch_bytes
            )

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
        check_column(schema, options.column, where=file.name)
        return FileLook(blocks=(Block(None, file.size),), plain=False)

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`."""
        for block in blocks:
            raw = pa.PythonFile(SeekableBytes(file).buffered(_REQUEST_BYTES), mode="r")
            yield (
                block,
                _batches(
                    partial(_all_of, raw), file.size, options, where=file.name,
                    batch_bytes=batch_bytes,
                ),
            )  # fmt: skip

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        table = pa.table({options.column: texts})
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
) -> Iterator[tuple[pa.LargeStringArray, float]]:
    """The column of each record batch, and how much of the file is read with it."""
    row = 0
    try:
        schema, batches = opened()
        check_column(schema, options.column, where=where)
        index = schema.get_field_index(options.column)
        for batch, fraction in batches:
            column = batch.column(index)
            column.validate(full=True)  # offsets and UTF-8 are only as good as the file
            texts = column.cast(pa.large_string())
            yield texts, fraction
            row += len(texts)
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
        yield from _batches(
            lambda: _some_of(raw), raw.size, options, where=where, batch_bytes=batch_bytes
        )


def _batches(
    opened: Callable[[], tuple[pa.Schema, _Batches]],
    size: int,
    options: ReadOptions,
    *,
    where: str,
    batch_bytes: int,
) -> Iterator[DocumentBatch]:
    row = 0
    left = _LARGEST_GROWTH * size + _ALWAYS_ALLOWED_BYTES
    for texts, fraction in _columns(opened, options, where):
        sizes = np.diff(text_buffers(texts)[1])
        left -= int(sizes.sum())
        if sizes.max(initial=0) > MAX_TEXT_BYTES:
            raise SourceError(
                f"{where}: row {row + int(sizes.argmax())} holds a text of {sizes.max()} bytes, at "
                f"most {MAX_TEXT_BYTES} are read. Cut it, or leave the file out."
            )
        if left < 0:
            raise SourceError(
                f"{where}: its texts take more than {_LARGEST_GROWTH} times the bytes of the file, "
                f"by row {row} already: it is made to fill a disk. Leave it out."
            )
        for start, end in cut_by_bytes(texts, batch_bytes):
            piece = texts.slice(start, end - start)
            rows = np.arange(row + start, row + end, dtype=np.int64)
            if piece.null_count:
                valid = piece.is_valid()
                rows, piece = rows[np.asarray(valid)], piece.filter(valid)
            yield DocumentBatch(rows, piece, end - start, fraction)
        row += len(texts)
