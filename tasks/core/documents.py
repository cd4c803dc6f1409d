"""Reading the documents of one Parquet file, in batches that do not depend on its size."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.errors import SourceError, UsageError
from tasks.core.text_array import text_buffers

BATCH_BYTES = 16 * 2**20  # of text; what a batch costs is little beside, and so is its memory
MAX_BATCH_ROWS = 2**16


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


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file; pre-buffered, it would keep every column chunk that it has read.

    Raises:
        SourceError: the file is missing, or no whole Parquet file.
    """
    try:
        return pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
    except FileNotFoundError as error:
        raise SourceError(f"{path}: the file is gone.") from error
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{path}: not a whole Parquet file ({_one_line(error)}). "
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
    path: Path, column: str, *, batch_bytes: int = BATCH_BYTES
) -> Iterator[DocumentBatch]:
    """Read the documents of a file in order.

    Args:
        path: a Parquet file.
        column: name of a text column.
        batch_bytes: text a batch, in bytes; a longer document stands alone.

    Raises:
        SourceError: the file is damaged; the message names the row from which on.
    """
    file = open_parquet(path)
    with file:
        check_column(file.schema_arrow, column, where=str(path))
        row, total_rows = 0, file.metadata.num_rows
        batches = file.iter_batches(
            batch_size=_rows_a_batch(file.metadata, column, batch_bytes),
            columns=[column],
            use_threads=False,
        )
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    break
                texts = batch.column(0).cast(pa.large_string())
            except (pa.ArrowException, OSError) as error:
                raise SourceError(
                    f"{path}: damaged from row {row} on ({_one_line(error)}). "
                    "Fetch it again, or leave it out."
                ) from error
            for start, end in _cut_by_bytes(texts, batch_bytes):
                yield _without_nulls(texts.slice(start, end - start), row + start, total_rows)
            row += len(texts)
        if row != total_rows:
            raise SourceError(
                f"{path}: {row} rows could be read, its footer promises {total_rows}."
            )


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
