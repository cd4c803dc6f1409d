"""What the footer of a Parquet file tells: row groups, where their text lies, where each begins.

A row group begins, for a span, where it would if the file were plain: at `size * before // total`
of uncompressed bytes. So pieces are even, and the footer alone tells them.

    groups of 30, 10 and 60 bytes in a file of 50: they begin at 0, 15 and 20
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, chain

import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.columns import Path as ColumnPath
from streaming_ext.text.documents.columns import find_columns, find_compared
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
