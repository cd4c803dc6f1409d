"""What the statistics of row groups tell of a condition: which of them hold no row that stays."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet as pq

from streaming_ext.text.documents.columns import find_compared, kind_at
from streaming_ext.text.documents.options import ReadOptions


def groups_that_may_stay(
    path: Path, metadata: pq.FileMetaData, options: ReadOptions
) -> frozenset[int]:
    """The row groups of a file of which a row may stay, by the least and largest of each column.

    Where statistics are missing, or cannot be compared with what the condition asks for, a group
    may stay: its rows are looked at one by one. Statistics of floating numbers leave NaN out, of
    which `!=`, `not in` and what stands behind `not` are true: where the condition asks for such
    of a floating column, all groups may stay.
    """
    every = frozenset(range(metadata.num_row_groups))
    condition = options.filters.condition
    if condition is None:
        return every
    schema = metadata.schema.to_arrow_schema()
    where = dict(
        zip(options.compared, find_compared(schema, options.compared, where=str(path)), strict=True)
    )
    if any(_floating(kind_at(schema, where[column])) for column in condition.columns_of_not):
        return every
    fragment = pa.dataset.ParquetFileFormat().make_fragment(str(path), pa.fs.LocalFileSystem())
    try:
        chosen = fragment.subset(
            filter=condition.apply(lambda column: pc.field(*where[column])), schema=schema
        )
    except pa.ArrowException:
        return every
    return frozenset(group.id for group in chosen.row_groups)


def _floating(kind: pa.DataType | None) -> bool:
    if kind is not None and pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind is None or bool(pa.types.is_floating(kind))
