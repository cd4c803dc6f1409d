"""Tables of numbers beside a dataset, as Parquet: written whole, read in bounded batches."""

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.errors import CorruptDatasetError, one_line

_MAX_THRIFT: Final = 2**20


def table_bytes(
    columns: Sequence[npt.NDArray[Any]], schema: pa.Schema, *, repeating: bool = True
) -> bytes:
    """A file of some columns: (rows,) each.

    Args:
        columns: in the order of the schema.
        schema: what they are stored as.
        repeating: whether values come again, so that a dictionary of them is worth its place.
    """
    arrays = [
        pa.array(column).cast(kind) for column, kind in zip(columns, schema.types, strict=True)
    ]
    file = io.BytesIO()
    table = pa.table(arrays, schema=schema)
    pq.write_table(table, file, compression="zstd", use_dictionary=repeating)
    return file.getvalue()


def read_columns(
    data: bytes, schema: pa.Schema, *, batch_rows: int, what: str
) -> Iterator[list[npt.NDArray[Any]]]:
    """The columns of a file, in batches: (rows,) each.

    Args:
        data: the file.
        schema: of its columns, to the letter.
        batch_rows: rows of a batch, at most.
        what: the file is, for messages.

    Raises:
        CorruptDatasetError: it is damaged, or holds what no such file holds.
    """
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data),
            thrift_string_size_limit=_MAX_THRIFT,
            thrift_container_size_limit=_MAX_THRIFT,
        )
        if file.schema_arrow != schema:
            raise CorruptDatasetError(f"expected the columns {', '.join(schema.names)}")
        for batch in file.iter_batches(batch_size=batch_rows, use_threads=False):
            if any(column.null_count for column in batch.columns):
                raise CorruptDatasetError("a column holds nulls")
            yield [np.asarray(column) for column in batch.columns]
    except (pa.ArrowException, OSError) as error:
        raise CorruptDatasetError(f"no {what}: {one_line(error)}") from error
