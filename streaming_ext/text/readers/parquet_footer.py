"""What the footer of a Parquet file tells: its columns and row groups, and where their text lies.

A row group begins, for a span, where it would if the file were plain: at `size * before // total`
of uncompressed bytes. So pieces are even, and the footer alone tells them.

    groups of 30, 10 and 60 bytes in a file of 50: they begin at 0, 15 and 20
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet as pq

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.columns import Path as ColumnPath
from streaming_ext.text.documents.columns import find_columns, find_compared, kind_at
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import SourceBytes, Span

_TAIL_BYTES = 2**16  # read at once for the footer: most are shorter


def text_chunks(
    file: SourceBytes, options: ReadOptions
) -> tuple[bytes, pq.FileMetaData, list[list[pq.ColumnChunkMetaData]]]:
    """The footer, as bytes and as read, and where what is read of each row group lies."""
    footer = _footer(file)
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer))
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{file.name}: not a whole Parquet file.") from error
    paths = find_columns(schema, options.columns, where=file.name)
    paths += find_compared(schema, options.compared, where=file.name)
    leaves = list(dict.fromkeys(_leaf(schema, path) for path in paths))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return footer, metadata, [[group.column(leaf) for leaf in leaves] for group in groups]


def _footer(file: SourceBytes) -> bytes:
    """The end of a file, its metadata included."""
    if file.size < 12:
        raise SourceError(f"{file.name}: {file.size} bytes are no Parquet file.")
    tail = file.read(max(0, file.size - _TAIL_BYTES), file.size)
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if tail[-4:] != b"PAR1" or length > file.size:
        raise SourceError(f"{file.name}: not a whole Parquet file.")
    if length > len(tail):
        tail = file.read(file.size - length, file.size)
    return tail[-length:]


def _leaf(schema: pa.Schema, path: ColumnPath) -> int:
    """The number of a column among the leaves of the schema: a struct has one for each field."""

    def leaves(kind: pa.DataType) -> int:
        fields = [kind.field(number).type for number in range(kind.num_fields)]
        return sum(leaves(field) for field in fields) if fields else 1

    inside, before = schema, 0
    for step in path:
        index = inside.get_field_index(step)
        before += sum(leaves(inside.field(number).type) for number in range(index))
        inside = inside.field(index).type
    return before


def needed_ranges(
    chunks: Sequence[Sequence[pq.ColumnChunkMetaData]], footer: bytes, size: int
) -> tuple[Span, ...] | None:
    """The ranges that reading these chunks takes; None where the footer tells what cannot be."""
    ranges = [(0, 4), (size - len(footer), size)]
    ranges += [span_of(chunk) for chunk in chain.from_iterable(chunks)]
    if any(not 0 <= start <= end <= size for start, end in ranges):
        return None
    return tuple(sorted(ranges))


def span_of(chunk: pq.ColumnChunkMetaData) -> Span:
    """Where a chunk begins and ends in the file."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


def groups_of(
    metadata: pq.FileMetaData, span: Span | None, size: int
) -> tuple[list[int], int, int]:
    """The row groups that begin in a span of a file, and rows [first, end); all where it is None.

    Args:
        metadata: the footer.
        span: in bytes.
        size: of the file.
    """
    if span is None:
        return list(range(metadata.num_row_groups)), 0, metadata.num_rows
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [max(0, group.total_byte_size) for group in groups]
    total = max(1, sum(sizes))
    # befores: row group -> bytes before it, likewise rows: (groups + 1,)
    befores = [0, *accumulate(sizes)]
    rows = [0, *accumulate(group.num_rows for group in groups)]
    starts = [min(size * before // total, size - 1) for before in befores[:-1]]
    first = bisect_left(starts, span[0])
    end = max(first, bisect_left(starts, span[1]))
    return list(range(first, end)), rows[first], rows[end]


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """The columns that are read: those of the text, and those of a condition."""

    texts: Sequence[ColumnPath]
    compared: Sequence[ColumnPath]

    @classmethod
    def of(cls, schema: pa.Schema, options: ReadOptions, *, where: str) -> Self:
        """Those that the options name."""
        return cls(
            find_columns(schema, options.columns, where=where),
            find_compared(schema, options.compared, where=where),
        )

    @property
    def text_names(self) -> list[str]:
        """What columns are called by those who read them."""
        return [".".join(path) for path in self.texts]

    @property
    def names(self) -> list[str]:
        """The same, with those of the condition."""
        return list(dict.fromkeys(self.text_names + [".".join(path) for path in self.compared]))


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
