"""Parquet: documents are rows, batches do not depend on the file's size, blocks are row groups."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.errors import SourceError, one_line
from streaming_ext.text.documents.columns import check_column
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.parquet_footer import groups_of, needed_ranges, text_chunks
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    MAX_BATCH_ROWS,
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
from streaming_ext.text.memory import memory_limit

_LARGEST_GROWTH = 1000  # text for a byte of file: real text gives 2 to 5, forms and logs 50
_ALWAYS_ALLOWED_BYTES = 2**30
_READ_BYTES = 2**18
_ROWS_A_GROUP = 1000  # of a file that is written for a sample
_CODECS = {"snappy", "gzip", "brotli", "zstd"}  # of those that read back what was written


class ParquetFormat(SourceFormat):
    """Parquet files; a document is a row."""

    name = "parquet"
    suffixes = (".parquet",)

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
        return read_documents(path, options.column, name=name, span=span, batch_bytes=batch_bytes)

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
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return FileLook(
            blocks=tuple(
                Block(group.num_rows, chunk.total_uncompressed_size)
                for group, chunk in zip(groups, chunks, strict=True)
            ),
            plain=True,
            needed=needed_ranges(chunks, footer, file.size),
            codec=chunks[0].compression.lower() if chunks else "zstd",
        )

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`."""
        try:
            with pq.ParquetFile(
                SeekableBytes(file), buffer_size=_READ_BYTES, pre_buffer=False
            ) as opened:
                for block in blocks:
                    yield block, _read_group(opened, options.column, block, batch_bytes)
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise SourceError(f"{file.name}: cannot be read: {error}") from error

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        pq.write_table(
            pa.table({options.column: texts}),
            path,
            compression=codec
            if codec in _CODECS
            else "none"
            if codec == "uncompressed"
            else "zstd",
            row_group_size=_ROWS_A_GROUP,
        )


def _read_group(
    file: pq.ParquetFile, column: str, group: int, batch_bytes: int
) -> Iterator[DocumentBatch]:
    total, row = file.metadata.row_group(group).num_rows, 0
    rows = _rows_a_batch(file.metadata, column, batch_bytes, [group])
    for batch in file.iter_batches(rows, [group], [column], use_threads=False):
        yield _without_nulls(batch.column(0).cast(pa.large_string()), row, total)
        row += batch.num_rows


def open_parquet(path: Path, *, name: str | None = None) -> pq.ParquetFile:
    """Open a Parquet file; pre-buffered, it would keep every column chunk that it has read.

    Raises:
        SourceError: the file is missing, or no whole Parquet file.
    """
    where = name or str(path)
    try:
        return pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
    except FileNotFoundError as error:
        raise SourceError(f"{where}: the file is gone.") from error
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{where}: not a whole Parquet file ({one_line(error)}). "
            "Fetch it again, or leave it out."
        ) from error


def read_documents(
    path: Path,
    column: str,
    *,
    batch_bytes: int = BATCH_BYTES,
    name: str | None = None,
    span: Span | None = None,
) -> Iterator[DocumentBatch]:
    """Read the documents of a file in order.

    Args:
        path: a Parquet file.
        column: name of a text column.
        batch_bytes: text a batch, in bytes; a longer document stands alone.
        name: what messages call the file; its path by default.
        span: row groups that begin in these bytes; all of them by default.

    Raises:
        SourceError: the file is damaged, or made to fill memory or disk; the message names the
            row from which on.
    """
    where = name or str(path)
    with open_parquet(path, name=name) as file:
        check_column(file.schema_arrow, column, where=where)
        size = path.stat().st_size
        groups, first_row, end_row = groups_of(file.metadata, span, size)
        row = first_row
        left = _LARGEST_GROWTH * size + _ALWAYS_ALLOWED_BYTES
        pieces = _read_texts(
            file, path, column, groups=groups, row=row, batch_bytes=batch_bytes, where=where
        )
        for texts in pieces:
            sizes = np.diff(text_buffers(texts)[1])
            left -= int(sizes.sum())
            if sizes.max(initial=0) > MAX_TEXT_BYTES:
                raise SourceError(
                    f"{where}: row {row + int(sizes.argmax())} holds a text of {sizes.max()} "
                    f"bytes, at most {MAX_TEXT_BYTES} are read. Cut it, or leave the file out."
                )
            if left < 0:
                raise SourceError(
                    f"{where}: its texts take more than {_LARGEST_GROWTH} times the bytes of the "
                    f"file, by row {row} already: it is made to fill a disk. Leave it out."
                )
            for start, end in cut_by_bytes(texts, batch_bytes):
                yield _without_nulls(
                    texts.slice(start, end - start),
                    row + start - first_row,
                    end_row - first_row,
                )
            row += len(texts)
        if row != end_row:
            raise SourceError(
                f"{where}: {row - first_row} rows could be read, its footer promises "
                f"{end_row - first_row}."
            )


def _read_texts(
    file: pq.ParquetFile,
    path: Path,
    column: str,
    *,
    groups: list[int],
    row: int,
    batch_bytes: int,
    where: str,
) -> Iterator[pa.LargeStringArray]:
    """The column in pieces; the second way where the first takes more memory than there is.

    Args:
        file, path: the file.
        column: its text column.
        groups: row groups to read.
        row: the first of them in the file.
        batch_bytes: of text at once.
        where: what messages call the file.
    """
    rows, first_row = _rows_a_batch(file.metadata, column, batch_bytes, groups), row
    try:
        try:
            for batch in file.iter_batches(rows, groups, [column], use_threads=False):
                yield batch.column(0).cast(pa.large_string())
                row += batch.num_rows
        except MemoryError:
            for texts in _read_repeated(
                path, column, groups=groups, rows=rows, batch_bytes=batch_bytes,
                skip=row - first_row,
            ):  # fmt: skip
                yield texts
                row += len(texts)
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
    path: Path, column: str, *, groups: list[int], rows: int, batch_bytes: int, skip: int
) -> Iterator[pa.LargeStringArray]:
    """The column as the file stores it, each repeated text once, and spelled out bit by bit.

    A page of some bytes may stand for a million copies of a large text. Slower where texts differ.

    Args:
        path: the file.
        column: its text column.
        groups: row groups to read.
        rows: to read at once.
        batch_bytes: of text to spell out at once.
        skip: rows to leave out at the beginning.
    """
    with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False,
                        read_dictionary=[column]) as file:  # fmt: skip
        for batch in file.iter_batches(rows, groups, [column], use_threads=False):
            stored = batch.column(0)
            skipped = min(skip, len(stored))
            skip -= skipped
            stored = stored.slice(skipped)
            words = np.diff(text_buffers(stored.dictionary.cast(pa.large_string()))[1])
            # sizes: (rows,), null is nothing; ends: (rows + 1,)
            sizes = words[np.asarray(stored.indices.fill_null(0))] if len(words) else []
            ends = np.concatenate([[0], np.cumsum(sizes)])
            start = 0
            while start < len(stored):
                end = len(stored)
                if len(words):
                    beyond = np.searchsorted(ends, ends[start] + batch_bytes, side="right")
                    end = max(start + 1, int(beyond) - 1)
                yield stored.slice(start, end - start).cast(pa.large_string())
                start = end


def _rows_a_batch(
    metadata: pq.FileMetaData, column: str, batch_bytes: int, groups: Sequence[int]
) -> int:
    total = num_rows = 0
    for group in groups:
        chunks = metadata.row_group(group)
        num_rows += chunks.num_rows
        for index in range(chunks.num_columns):
            if chunks.column(index).path_in_schema == column:
                total += chunks.column(index).total_uncompressed_size
    return int(np.clip(batch_bytes * num_rows // max(total, 1), 1, MAX_BATCH_ROWS))


def _without_nulls(texts: pa.LargeStringArray, first_row: int, total_rows: int) -> DocumentBatch:
    rows = np.arange(first_row, first_row + len(texts), dtype=np.int64)
    fraction = (first_row + len(texts)) / total_rows
    num_rows = len(texts)
    if texts.null_count:
        valid = texts.is_valid()
        rows, texts = rows[np.asarray(valid)], texts.filter(valid)
    return DocumentBatch(rows, texts, num_rows, fraction)
