"""Parquet files of a dataset, made in memory and read in bounded batches."""

import io
from collections.abc import Callable, Collection, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.base.errors import CorruptDatasetError, one_line

_BATCH_ROWS: Final = 2**16
_MAX_THRIFT: Final = 2**20  # bytes of a string, or items of a list, in a footer


def parquet_bytes(table: pa.Table, *, dictionary: bool = True) -> bytes:
    """Return a table as the content of a file.

    Args:
        table: a table of any size.
        dictionary: True to write dictionaries of the values, if they repeat.
    """
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", use_dictionary=dictionary)
    return file.getvalue()


def read_batches(
    data: bytes,
    *schemas: pa.Schema,
    nullable: Collection[str] = (),
    further: Callable[[pa.Field], bool] = lambda field: False,
    dictionaries: Collection[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Read a file in batches of at most 65,536 rows.

    Args:
        data: the file.
        schemas: the schemas that the file may have.
        nullable: columns that may hold nulls.
        further: a function that says whether the file may also have a column; such columns may
            hold nulls.
        dictionaries: columns of texts to read as dictionaries, so that a long text that repeats
            is in memory once.

    Raises:
        CorruptDatasetError: the file is damaged, or holds other columns, or nulls.
    """
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data),
            read_dictionary=list(dictionaries),
            thrift_string_size_limit=_MAX_THRIFT,
            thrift_container_size_limit=_MAX_THRIFT,
        )
        names = {field.name for field in file.schema_arrow if not further(field)}
        own = [(field.name, _type_of(field)) for field in file.schema_arrow if field.name in names]
        if own not in [[(field.name, field.type) for field in schema] for schema in schemas]:
            found = ", ".join(f"{name}: {kind}" for name, kind in own)
            raise CorruptDatasetError(
                f"its columns are {found}, expected {', '.join(schemas[0].names)}"
            )
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
            for name in names.difference(nullable):
                if batch.column(name).null_count:
                    raise CorruptDatasetError(f"the column {name} holds nulls")
            yield batch
    except (pa.ArrowException, OSError) as error:
        raise CorruptDatasetError(f"damaged Parquet file: {one_line(error)}") from error


def _type_of(field: pa.Field) -> pa.DataType:
    kind = field.type
    return kind.value_type if pa.types.is_dictionary(kind) else kind
