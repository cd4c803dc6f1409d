"""Reading the documents of one Parquet file, in batches that do not depend on its size."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.errors import SourceError, UsageError
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.memory import VARIABLE as MEMORY_VARIABLE
from streaming_ext.text.memory import memory_limit

BATCH_BYTES = 16 * 2**20  # of text; what a batch costs is little beside, and so is its memory
MAX_BATCH_ROWS = 2**16
MAX_TEXT_BYTES = 2**28  # of one document: far above any that people write
_LARGEST_GROWTH = 1000  # text for a byte of file: real text gives 2 to 5, forms and logs 50
_ALWAYS_ALLOWED_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Some consecutive rows of a source file.

    Attributes:
        rows: row in the file of each text, int64 (num_texts,).
        texts: the texts that are not null.
        num_rows: rows read, nulls among them.
        fraction: of the file's rows that are read with this batch, in [0, 1].
    """

    rows: npt.NDArray[np.int64]
    texts: pa.LargeStringArray
    num_rows: int
    fraction: float


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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
            f"{where}: not a whole Parquet file ({_one_line(error)}). "
            "Fetch it again, or leave it out."
        ) from error


def check_column(schema: pa.Schema, column: str, *, where: str) -> None:
    """Make sure that `column` is there and holds text.

    Raises:
        UsageError: it is not, naming the columns that are.
    """
    indices = schema.get_all_field_indices(column)
    if len(indices) != 1:
        problem = f"has no column {column!r}" if not indices else f"has {column!r} more than once"
        raise UsageError(
            f"{where} {problem}; its columns are {', '.join(schema.names)}. Pass --text-column."
        )
    kind = schema.field(indices[0]).type
    if not _is_text(kind):
        raise UsageError(
            f"{where}: column {column!r} is of type {kind}, expected string. "
            f"Columns of text: {', '.join(f.name for f in schema if _is_text(f.type)) or 'none'}."
        )


def read_documents(
    path: Path, column: str, *, batch_bytes: int = BATCH_BYTES, name: str | None = None
) -> Iterator[DocumentBatch]:
    """Read the documents of a file in order.

    Args:
        path: a Parquet file.
        column: name of a text column.
        batch_bytes: text a batch, in bytes; a longer document stands alone.
        name: what messages call the file; its path by default.

    Raises:
        SourceError: the file is damaged, or made to fill memory or disk; the message names the
            row from which on.
    """
    where = name or str(path)
    with open_parquet(path, name=name) as file:
        check_column(file.schema_arrow, column, where=where)
        row, total_rows = 0, file.metadata.num_rows
        left = _LARGEST_GROWTH * path.stat().st_size + _ALWAYS_ALLOWED_BYTES
        for texts in _read_texts(file, path, column, batch_bytes=batch_bytes, where=where):
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
            for start, end in _cut_by_bytes(texts, batch_bytes):
                yield _without_nulls(texts.slice(start, end - start), row + start, total_rows)
            row += len(texts)
        if row != total_rows:
            raise SourceError(
                f"{where}: {row} rows could be read, its footer promises {total_rows}."
            )


def _read_texts(
    file: pq.ParquetFile, path: Path, column: str, *, batch_bytes: int, where: str
) -> Iterator[pa.LargeStringArray]:
    """The column in pieces; the second way where the first takes more memory than there is."""
    rows = _rows_a_batch(file.metadata, column, batch_bytes)
    row = 0
    try:
        try:
            for batch in file.iter_batches(batch_size=rows, columns=[column], use_threads=False):
                yield batch.column(0).cast(pa.large_string())
                row += batch.num_rows
        except MemoryError:
            for texts in _read_repeated(path, column, rows=rows, batch_bytes=batch_bytes, skip=row):
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
            f"{where}: damaged from row {row} on ({_one_line(error)}). "
            "Fetch it again, or leave it out."
        ) from error


def _read_repeated(
    path: Path, column: str, *, rows: int, batch_bytes: int, skip: int
) -> Iterator[pa.LargeStringArray]:
    """The column as the file stores it, each repeated text once, and spelled out bit by bit.

    A page of some bytes may stand for a million copies of a large text. Slower where texts differ.

    Args:
        path: the file.
        column: its text column.
        rows: to read at once.
        batch_bytes: of text to spell out at once.
        skip: rows to leave out at the beginning.
    """
    with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False,
                        read_dictionary=[column]) as file:  # fmt: skip
        for batch in file.iter_batches(batch_size=rows, columns=[column], use_threads=False):
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


def _rows_a_batch(metadata: pq.FileMetaData, column: str, batch_bytes: int) -> int:
    total = 0
    for group in range(metadata.num_row_groups):
        chunks = metadata.row_group(group)
        for index in range(chunks.num_columns):
            if chunks.column(index).path_in_schema == column:
                total += chunks.column(index).total_uncompressed_size
    return int(np.clip(batch_bytes * metadata.num_rows // max(total, 1), 1, MAX_BATCH_ROWS))


def _cut_by_bytes(texts: pa.LargeStringArray, batch_bytes: int) -> Iterator[tuple[int, int]]:
    if len(texts) == 0:
        return
    _, offsets = text_buffers(texts)
    start = 0
    while start < len(texts):
        limit = offsets[start] + batch_bytes
        end = max(start + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        yield start, end
        start = end


def _without_nulls(texts: pa.LargeStringArray, first_row: int, total_rows: int) -> DocumentBatch:
    rows = np.arange(first_row, first_row + len(texts), dtype=np.int64)
    fraction = (first_row + len(texts)) / total_rows
    num_rows = len(texts)
    if texts.null_count:
        valid = texts.is_valid()
        rows, texts = rows[np.asarray(valid)], texts.filter(valid)
    return DocumentBatch(rows, texts, num_rows, fraction)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
