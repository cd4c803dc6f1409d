"""Parquet: documents are rows, batches do not depend on the file's size, blocks are row groups.

A row group begins, for a span, where it would if the file were plain: at `size * before // total`
of uncompressed bytes. So spans are even, and the footer alone tells them.

    groups of 30, 10 and 60 bytes in a file of 50: they begin at 0, 15 and 20
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import (
    ChosenColumns,
    check_schema,
    find_compared,
    kind_at,
)
from streaming_ext.text.documents.columns import Path as ColumnPath
from streaming_ext.text.documents.document_rows import MAX_BATCH_ROWS, DocumentBatch, DocumentRows
from streaming_ext.text.documents.files import SourceBytes, Span, open_for_arrow
from streaming_ext.text.documents.objects import MAX_RECORDS, Record
from streaming_ext.text.documents.source_format import Block, FileLook, SourceFormat, faults

_READ_BYTES = 2**18
_TAIL_BYTES = 2**16  # read at once for the footer: most are shorter
_FEWER = 32  # times fewer rows are read at once where memory is short


class ParquetFormat(SourceFormat):
    """Parquet files; a document is a row."""

    name = "parquet"
    suffixes = (".parquet",)

    def documents(
        self, file: SourceBytes, rows: DocumentRows, span: Span | None
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`; a span is whole row groups."""
        footer, metadata = _metadata(file)
        schema = metadata.schema.to_arrow_schema()
        columns = ChosenColumns.of(schema, rows.options, where=file.name)
        groups, rows.rows_before, end_row = groups_of(metadata, span, file.size)
        total = end_row - rows.rows_before
        stay = _groups_that_may_stay(footer, metadata, rows.options, where=file.name)
        with faults(file, "Parquet", rows), _opened(file) as opened:
            for may_stay, run in groupby(groups, key=stay.__contains__):
                of_run = list(run)
                if not may_stay:
                    count = sum(metadata.row_group(group).num_rows for group in of_run)
                    yield rows.passed_over(count, (rows.row + count) / max(total, 1))
                    continue
                at_once = _rows_a_batch(metadata, columns.text_names, rows.batch_bytes, of_run)
                for texts, compared in _columns(opened, of_run, columns, at_once):
                    fraction = (rows.row + len(texts[0])) / max(total, 1)
                    yield from rows.batches(texts, fraction, compared=compared)
                    del texts, compared  # before the next are read: one may be large
        if rows.row != total:
            raise SourceError(
                f"{file.name}: {rows.row} rows could be read, its footer promises {total}."
            )

    def records(
        self, file: SourceBytes, options: ReadOptions, span: Span | None
    ) -> Iterator[list[Record]]:
        """See `SourceFormat.records`."""
        groups = groups_of(_metadata(file)[1], span, file.size)[0]
        with faults(file, "Parquet"), _opened(file) as opened:
            for batch in opened.iter_batches(MAX_RECORDS, groups, use_threads=False):
                yield batch.to_pylist()

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: always; where it has one row group, one span has it."""
        return True

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`: the columns of its row groups, and the footer."""
        footer, metadata = _metadata(file)
        chunks = _chunks(file, metadata, options)
        groups = groups_of(metadata, span, file.size)[0]
        return _ranges([chunks[group] for group in groups], footer, file.size) or ((0, file.size),)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: the footer tells all."""
        footer, metadata = _metadata(file)
        chunks = _chunks(file, metadata, options)
        check_schema(metadata.schema.to_arrow_schema(), options, where=file.name)
        starts = _starts(metadata, file.size)
        blocks = []
        for begin, end in zip(unique := sorted({*starts}), [*unique[1:], file.size], strict=True):
            own = [group for group, start in enumerate(starts) if start == begin]
            of_block = chain.from_iterable(chunks[group] for group in own)
            blocks.append(
                Block(
                    sum(metadata.row_group(group).num_rows for group in own),
                    sum(chunk.total_uncompressed_size for chunk in of_block),
                    (begin, end),
                )
            )
        needed = _ranges(chunks, footer, file.size)
        return FileLook(blocks=tuple(blocks), plain=True, needed=needed)


def _opened(file: SourceBytes) -> pq.ParquetFile:
    """An open file; pre-buffered, it would keep every column chunk that it has read."""
    raw = open_for_arrow(file, _READ_BYTES)
    return pq.ParquetFile(
        raw, page_checksum_verification=True, pre_buffer=False, buffer_size=_READ_BYTES
    )


def _metadata(file: SourceBytes) -> tuple[bytes, pq.FileMetaData]:
    """The footer of a file, as bytes and as read.

    Raises:
        SourceError: the file is no whole Parquet file.
    """
    with faults(file, "Parquet"):
        tail = file.read(max(0, file.size - _TAIL_BYTES), file.size)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if file.size < 12 or tail[-4:] != b"PAR1" or length > file.size:
            raise ValueError(f"of its {file.size} bytes the last are no footer")
        if length > len(tail):
            tail = file.read(file.size - length, file.size)
        footer = tail[-length:]
        metadata = pq.read_metadata(pa.BufferReader(footer))
        metadata.schema.to_arrow_schema()
    return footer, metadata


def _chunks(
    file: SourceBytes, metadata: pq.FileMetaData, options: ReadOptions
) -> list[list[pq.ColumnChunkMetaData]]:
    """Where what is read of each row group lies."""
    schema = metadata.schema.to_arrow_schema()
    columns = ChosenColumns.of(schema, options, where=file.name)
    paths = [*columns.texts, *columns.compared]
    leaves = list(dict.fromkeys(_leaf(schema, path) for path in paths))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [[group.column(leaf) for leaf in leaves] for group in groups]


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


def _ranges(
    chunks: Sequence[Sequence[pq.ColumnChunkMetaData]], footer: bytes, size: int
) -> tuple[Span, ...] | None:
    """The ranges that reading these chunks takes; None where the footer tells what cannot be."""
    ranges = [(0, 4), (size - len(footer), size)]
    for chunk in chain.from_iterable(chunks):
        start = chunk.data_page_offset
        if chunk.has_dictionary_page:
            start = min(start, chunk.dictionary_page_offset)
        ranges.append((start, start + chunk.total_compressed_size))
    if any(not 0 <= start <= end <= size for start, end in ranges):
        return None
    return tuple(sorted(ranges))


def _starts(metadata: pq.FileMetaData, size: int) -> list[int]:
    """Where each row group begins, for a span."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    ends = list(accumulate((max(0, group.total_byte_size) for group in groups), initial=0))
    return [min(size * before // max(1, ends[-1]), size - 1) for before in ends[:-1]]


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
    counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    rows = [0, *accumulate(counts)]
    starts = _starts(metadata, size)
    first = bisect_left(starts, span[0])
    end = max(first, bisect_left(starts, span[1]))
    return list(range(first, end)), rows[first], rows[end]


def _columns(
    opened: pq.ParquetFile, groups: Sequence[int], columns: ChosenColumns, at_once: int
) -> Iterator[tuple[list[pa.LargeStringArray], list[pa.Array]]]:
    """Texts and other columns of row groups, so many rows at once; fewer where memory is short.

    A page of some bytes may stand for a million copies of a large text.
    """
    done = 0
    while True:
        skip = done
        try:
            for batch in opened.iter_batches(at_once, groups, columns.names, use_threads=False):
                skipped = min(skip, len(batch))
                skip -= skipped
                if skipped == len(batch):
                    continue
                found = columns.of_batch(batch.slice(skipped))
                done += len(batch) - skipped
                del batch
                yield found
                del found
        except MemoryError:
            if at_once == 1:
                raise
            at_once = max(1, at_once // _FEWER)
        else:
            return


def _rows_a_batch(
    metadata: pq.FileMetaData, names: Sequence[str], batch_bytes: int, groups: Sequence[int]
) -> int:
    total = num_rows = 0
    for group in groups:
        chunks = metadata.row_group(group)
        num_rows += chunks.num_rows
        for index in range(chunks.num_columns):
            if chunks.column(index).path_in_schema in names:
                total += chunks.column(index).total_uncompressed_size
    return int(np.clip(batch_bytes * num_rows // max(total, 1), 1, MAX_BATCH_ROWS))


def _groups_that_may_stay(
    footer: bytes, metadata: pq.FileMetaData, options: ReadOptions, *, where: str
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
    compared = find_compared(schema, options.compared, where=where)
    paths = dict(zip(options.compared, compared, strict=True))
    if any(_floating(kind_at(schema, paths[column])) for column in condition.columns_of_not):
        return every
    fragment = pa.dataset.ParquetFileFormat().make_fragment(pa.BufferReader(footer))
    try:
        chosen = fragment.subset(
            filter=condition.apply(lambda column: pc.field(*paths[column])), schema=schema
        )
    except pa.ArrowException:
        return every
    return frozenset(group.id for group in chosen.row_groups)


def _floating(kind: pa.DataType | None) -> bool:
    if kind is not None and pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind is None or bool(pa.types.is_floating(kind))
