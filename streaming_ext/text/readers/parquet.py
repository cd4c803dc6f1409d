"""Parquet: documents are rows, batches do not depend on the file's size, blocks are row groups."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.errors import SourceError, one_line
from streaming_ext.text.documents.columns import (
    check_schema,
    column_at,
    compared_at,
    table_of,
    texts_at,
)
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    MAX_BATCH_ROWS,
    MAX_RECORDS,
    Block,
    DocumentBatch,
    FileLook,
    Record,
    SeekableBytes,
    SourceBytes,
    SourceFormat,
    Span,
)
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.memory import VARIABLE as MEMORY_VARIABLE
from streaming_ext.text.memory import memory_limit
from streaming_ext.text.readers.parquet_footer import (
    ChosenColumns,
    groups_of,
    groups_that_may_stay,
    needed_ranges,
    text_chunks,
)
from streaming_ext.text.readers.parquet_pages import text_is_checked

ReadColumns = tuple[list[pa.LargeStringArray], list[pa.Array]]  # texts, and what is compared
_READ_BYTES = 2**18
_ROWS_A_GROUP = 1000  # of a file that is written for a sample
_CODECS = {"snappy", "gzip", "brotli", "zstd"}  # of those that read back what was written


class ParquetFormat(SourceFormat):
    """Parquet files; a document is a row."""

    name = "parquet"
    suffixes = (".parquet",)
    has_records = True

    def read(
        self,
        path: Path,
        options: ReadOptions,
        *,
        name: str | None = None,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.read`; a piece is whole row groups."""
        return read_documents(path, options, name=name, span=span, batch_bytes=batch_bytes)

    def records(
        self, path: Path, options: ReadOptions, *, name: str, span: Span | None = None
    ) -> Iterator[list[Record]]:
        """See `SourceFormat.records`."""
        with open_parquet(path, name=name) as file:
            try:
                for batch in file.iter_batches(MAX_RECORDS):
                    yield batch.to_pylist()
            except (pa.ArrowException, OSError) as error:
                raise SourceError(f"{name}: cannot be read: {one_line(error)}.") from error

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: always; where it has one row group, one piece has it."""
        return True

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`: the column of its row groups, and the footer."""
        footer, metadata, chunks = text_chunks(file, options)
        groups = groups_of(metadata, span, file.size)[0]
        return needed_ranges([chunks[group] for group in groups], footer, file.size) or (
            (0, file.size),
        )

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: the footer tells all."""
        footer, metadata, chunks = text_chunks(file, options)
        check_schema(metadata.schema.to_arrow_schema(), options, where=file.name)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return FileLook(
            blocks=tuple(
                Block(group.num_rows, sum(chunk.total_uncompressed_size for chunk in of_group))
                for group, of_group in zip(groups, chunks, strict=True)
            ),
            plain=True,
            needed=needed_ranges(chunks, footer, file.size),
            codec=chunks[0][0].compression.lower() if chunks else "zstd",
        )

    def own_checksums(
        self, file: SourceBytes, options: ReadOptions, span: Span | None = None
    ) -> bool:
        """See `SourceFormat.own_checksums`: a page may have one, footer and headers have none."""
        return text_is_checked(file, options, span)

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`."""
        try:
            with pq.ParquetFile(
                SeekableBytes(file), buffer_size=_READ_BYTES, pre_buffer=False
            ) as opened:
                columns = ChosenColumns.of(opened.schema_arrow, options, where=file.name)
                for block in blocks:
                    rows = DocumentRows(
                        options, where=file.name, size=file.size, batch_bytes=batch_bytes
                    )
                    yield block, _read_group(opened, columns, block, rows, batch_bytes)
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise SourceError(f"{file.name}: cannot be read: {error}") from error

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        pq.write_table(
            table_of(texts, options),
            path,
            compression=codec
            if codec in _CODECS
            else "none"
            if codec == "uncompressed"
            else "zstd",
            row_group_size=_ROWS_A_GROUP,
        )


def _read_group(
    file: pq.ParquetFile, columns: ChosenColumns, group: int, rows: DocumentRows, size: int
) -> Iterator[DocumentBatch]:
    total = file.metadata.row_group(group).num_rows
    at_once = _rows_a_batch(file, columns.text_names, size, [group])
    for batch in file.iter_batches(at_once, [group], columns.names, use_threads=False):
        yield from rows.batches(
            texts_at(batch, columns.texts),
            (rows.row + len(batch)) / total,
            compared=compared_at(batch, columns.compared),
        )


def open_parquet(path: Path, *, name: str | None = None) -> pq.ParquetFile:
    """Open a Parquet file; pre-buffered, it would keep every column chunk that it has read.

    Raises:
        SourceError: the file is missing, or no whole Parquet file.
    """
    where = name or str(path)
    try:
        return pq.ParquetFile(
            path, page_checksum_verification=True, pre_buffer=False, buffer_size=_READ_BYTES
        )
    except FileNotFoundError as error:
        raise SourceError(f"{where}: the file is gone.") from error
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{where}: not a whole Parquet file ({one_line(error)}). "
            "Fetch it again, or leave it out."
        ) from error


def read_documents(
    path: Path,
    options: ReadOptions,
    *,
    batch_bytes: int = BATCH_BYTES,
    name: str | None = None,
    span: Span | None = None,
) -> Iterator[DocumentBatch]:
    """Read the documents of a file in order.

    Args:
        path: a Parquet file.
        options: which text to read.
        batch_bytes: text a batch, in bytes; a longer document stands alone.
        name: what messages call the file; its path by default.
        span: row groups that begin in these bytes; all of them by default.

    Raises:
        SourceError: the file is damaged, or made to fill memory or disk; the message names the
            row from which on.
    """
    where = name or str(path)
    with open_parquet(path, name=name) as file:
        columns = ChosenColumns.of(file.schema_arrow, options, where=where)
        size = path.stat().st_size
        groups, first_row, end_row = groups_of(file.metadata, span, size)
        total = end_row - first_row
        rows = DocumentRows(
            options, where=where, size=size, batch_bytes=batch_bytes, rows_before=first_row
        )
        for run, may_stay in _runs(path, file, groups, options):
            if not may_stay:
                count = sum(file.metadata.row_group(group).num_rows for group in run)
                yield rows.passed_over(count, (rows.row + count) / max(total, 1))
                continue
            for texts, compared in _read_columns(
                file,
                path,
                columns,
                groups=run,
                row=first_row + rows.row,
                batch_bytes=batch_bytes,
                where=where,
            ):
                yield from rows.batches(
                    texts, (rows.row + len(texts[0])) / max(total, 1), compared=compared
                )
                del texts, compared  # before the next are read: one may be large
        if rows.row != total:
            raise SourceError(
                f"{where}: {rows.row} rows could be read, its footer promises {total}."
            )


def _runs(
    path: Path, file: pq.ParquetFile, groups: Sequence[int], options: ReadOptions
) -> Iterator[tuple[list[int], bool]]:
    """Row groups that follow each other, and whether one of their rows may stay."""
    chosen = groups_that_may_stay(path, file.metadata, options)
    for may_stay, run in groupby(groups, key=chosen.__contains__):
        yield list(run), may_stay


def _read_columns(
    file: pq.ParquetFile,
    path: Path,
    columns: ChosenColumns,
    *,
    groups: list[int],
    row: int,
    batch_bytes: int,
    where: str,
) -> Iterator[ReadColumns]:
    """The columns in pieces; the second way where the first takes more memory than there is.

    Args:
        file, path: the file.
        columns: to read.
        groups: row groups to read.
        row: the first of them in the file.
        batch_bytes: of text at once.
        where: what messages call the file.
    """
    rows, first_row = _rows_a_batch(file, columns.text_names, batch_bytes, groups), row
    try:
        try:
            for batch in file.iter_batches(rows, groups, columns.names, use_threads=False):
                yield texts_at(batch, columns.texts), compared_at(batch, columns.compared)
                row += batch.num_rows
                del batch
        except MemoryError:
            for texts, compared in _read_repeated(
                path,
                columns,
                groups=groups,
                rows=rows,
                batch_bytes=batch_bytes,
                skip=row - first_row,
            ):
                yield texts, compared
                row += len(texts[0])
    except MemoryError as error:
        raise SourceError(
            f"{where}: what stands from row {row} on takes more memory than the "
            f"{memory_limit() / 2**30:.3g} GiB that a worker may have. Leave the file out, or set "
            f"{MEMORY_VARIABLE} higher."
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{where}: damaged from row {row} on ({one_line(error)}). "
            "Fetch it again, or leave it out."
        ) from error


def _read_repeated(
    path: Path,
    columns: ChosenColumns,
    *,
    groups: list[int],
    rows: int,
    batch_bytes: int,
    skip: int,
) -> Iterator[ReadColumns]:
    """The columns as the file stores them, each repeated text once, and spelled out bit by bit.

    A page of some bytes may stand for a million copies of a large text. Slower where texts differ.

    Args:
        path: the file.
        columns: to read.
        groups: row groups to read.
        rows: to read at once.
        batch_bytes: of text to spell out at once.
        skip: rows to leave out at the beginning.
    """
    with pq.ParquetFile(
        path, page_checksum_verification=True, pre_buffer=False, read_dictionary=columns.text_names
    ) as file:
        for batch in file.iter_batches(rows, groups, columns.names, use_threads=False):
            skipped = min(skip, len(batch))
            skip -= skipped
            stored = [column_at(batch, column).slice(skipped) for column in columns.texts]
            compared = [column.slice(skipped) for column in compared_at(batch, columns.compared)]
            # ends: (rows + 1,), of all columns
            ends = np.concatenate([[0], np.cumsum(sum(map(_sizes, stored)))])
            start, length = 0, len(batch) - skipped
            while start < length:
                beyond = np.searchsorted(ends, ends[start] + batch_bytes, side="right")
                end = max(start + 1, int(beyond) - 1)
                yield (
                    [c.slice(start, end - start).cast(pa.large_string()) for c in stored],
                    [c.slice(start, end - start) for c in compared],
                )
                start = end


def _sizes(stored: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """Bytes of each text, 0 where it is null."""
    words = np.diff(text_buffers(stored.dictionary.cast(pa.large_string()))[1])
    if not len(words):
        return np.zeros(len(stored), np.int64)
    sizes = words[np.asarray(stored.indices.fill_null(0))]
    return np.where(np.asarray(stored.is_valid()), sizes, 0)


def _rows_a_batch(
    file: pq.ParquetFile, names: Sequence[str], batch_bytes: int, groups: Sequence[int]
) -> int:
    total = num_rows = 0
    for group in groups:
        chunks = file.metadata.row_group(group)
        num_rows += chunks.num_rows
        for index in range(chunks.num_columns):
            if chunks.column(index).path_in_schema in names:
                total += chunks.column(index).total_uncompressed_size
    return int(np.clip(batch_bytes * num_rows // max(total, 1), 1, MAX_BATCH_ROWS))
