"""Parquet: documents are rows, batches do not depend on the file's size, blocks are row groups.

For spans, a row group begins where it would begin in a file without compression: at
`size * before // total` of uncompressed bytes. So the parts of a file are even, and the footer
alone decides on them.

    groups of 30, 10 and 60 bytes in a file of 50: they begin at 0, 15 and 20
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import paths_of
from streaming_ext.text.documents.document_rows import MAX_BATCH_ROWS, DocumentRows
from streaming_ext.text.documents.files import SourceBytes, Span, open_for_arrow
from streaming_ext.text.documents.source_format import (
    FileBlock,
    Names,
    Table,
    TableFormat,
    faults,
)

_READ_BYTES = 2**18
_TAIL_BYTES = 2**16  # that are read first for the footer; most footers are shorter
_FEWER = 32  # divisor of the number of rows per batch if memory is short


class ParquetFormat(TableFormat):
    """Parquet files; a document is a row."""

    name = "parquet"
    suffixes = (".parquet",)
    length_bytes = 4

    def schema(self, file: SourceBytes, options: ReadOptions) -> pa.Schema:
        """See `TableFormat.schema`."""
        return Footer(file).schema

    def tables(self, rows: DocumentRows, names: Names) -> Iterator[Table]:
        """See `TableFormat.tables`; a span consists of whole row groups."""
        file, footer = rows.file, Footer(rows.file)
        groups, rows.rows_before, end_row = footer.groups_of(rows.span)
        total = end_row - rows.rows_before
        # With pre-buffering, an open file would keep every column chunk that it has read.
        with pq.ParquetFile(
            open_for_arrow(file, _READ_BYTES),
            page_checksum_verification=True,
            pre_buffer=False,
            buffer_size=_READ_BYTES,
        ) as opened:
            at_once = _rows_a_batch(footer, names, rows.batch_bytes, groups)
            for batch in _batches(opened, groups, names, at_once):
                yield Table(batch, (rows.row + len(batch)) / max(total, 1))
                del batch  # before the next batch is read, since one may be large
        if rows.row != total:
            raise SourceError(
                f"{file.name}: {rows.row} rows could be read, its footer promises {total}."
            )

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: always; one row group lies in one span."""
        return True

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span | None) -> Sequence[Span]:
        """See `SourceFormat.needed`: the columns of the row groups, and the footer."""
        footer = Footer(file)
        chunks = footer.chunks(footer.groups_of(span)[0], footer.names(options))
        return footer.ranges(chunks) or super().needed(file, options, span)

    def blocks(self, file: SourceBytes, options: ReadOptions) -> Sequence[FileBlock]:
        """See `SourceFormat.blocks`: a block is a row group."""
        footer = Footer(file)
        names, starts, found = footer.names(options), sorted({*footer.starts}), []
        for span in zip(starts, [*starts, file.size][1:], strict=True):
            groups, first, end = footer.groups_of(span)
            if first < end:
                chunks = footer.chunks(groups, names)
                found.append(
                    FileBlock(sum(chunk.total_uncompressed_size for chunk in chunks), span)
                )
        return found


class Footer:
    """The footer of a Parquet file.

    Attributes:
        metadata: the content of the footer.
        size: the size of the file in bytes.
    """

    def __init__(self, file: SourceBytes) -> None:
        """Read the footer at the end of a file.

        Raises:
            SourceError: the file is not a whole Parquet file.
        """
        self._name, self.size = file.name, file.size
        with faults(file, "Parquet"):
            tail = file.read(max(0, self.size - _TAIL_BYTES), self.size)
            length = int.from_bytes(tail[-8:-4], "little")
            if len(tail) < length + 8 <= self.size:
                tail = file.read(self.size - length - 8, self.size)
            self.metadata = pq.read_metadata(pa.BufferReader(tail))
            if length > self.metadata.serialized_size:  # a signature follows
                # Arrow ends the process if it is asked for the offset of an encrypted column.
                raise ValueError("it is encrypted, or signed")
            _ = self.schema

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the file."""
        return self.metadata.schema.to_arrow_schema()

    @cached_property
    def starts(self) -> list[int]:
        """Offset at which each row group begins, for spans."""
        groups = map(self.metadata.row_group, range(self.metadata.num_row_groups))
        ends = [*accumulate((max(0, group.total_byte_size) for group in groups), initial=0)]
        return [min(self.size * done // max(1, ends[-1]), self.size - 1) for done in ends[:-1]]

    @cached_property
    def rows(self) -> list[int]:
        """Number of rows before each row group; the last number is that of all rows."""
        groups = map(self.metadata.row_group, range(self.metadata.num_row_groups))
        return [0, *accumulate(group.num_rows for group in groups)]

    def groups_of(self, span: Span | None) -> tuple[range, int, int]:
        """Return the row groups that begin in a span (None: all), and their rows [first, end)."""
        if span is None:
            return range(self.metadata.num_row_groups), 0, self.metadata.num_rows
        first = bisect_left(self.starts, span[0])
        end = max(first, bisect_left(self.starts, span[1]))
        return range(first, end), self.rows[first], self.rows[end]

    def names(self, options: ReadOptions) -> Sequence[str]:
        """Return the columns that are read, as Arrow names them."""
        paths = paths_of(self.schema, options, where=self._name)
        return [".".join(path) for path in paths.values() if path]

    def chunks(self, groups: Sequence[int], names: Names) -> list[pq.ColumnChunkMetaData]:
        """Return the column chunks that are read, of some row groups."""
        paths = [self.metadata.schema.column(n).path for n in range(self.metadata.num_columns)]
        # Arrow reads all leaves of a column.
        leaves = [
            leaf
            for leaf, path in enumerate(paths)
            if names is None or any(f"{path}.".startswith(f"{name}.") for name in names)
        ]
        return [self.metadata.row_group(group).column(leaf) for group in groups for leaf in leaves]

    def ranges(self, chunks: Sequence[pq.ColumnChunkMetaData]) -> tuple[Span, ...] | None:
        """Return the ranges of bytes that these chunks lie in; None if the footer is wrong."""
        ranges = [(0, 4), (self.size - self.metadata.serialized_size - 8, self.size)]
        for chunk in chunks:
            start = chunk.data_page_offset
            if chunk.has_dictionary_page:
                start = min(start, chunk.dictionary_page_offset)
            ranges.append((start, start + chunk.total_compressed_size))
        if any(not 0 <= start <= end <= self.size for start, end in ranges):
            return None
        return tuple(sorted(ranges))


def _batches(
    opened: pq.ParquetFile, groups: Sequence[int], names: Names, at_once: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of row groups, `at_once` per batch, fewer if memory is short.

    A page of a few bytes may stand for a million copies of a large text.
    """
    done = 0
    while True:
        skip = done
        try:
            for batch in opened.iter_batches(at_once, groups, names, use_threads=False):
                skipped = min(skip, len(batch))
                skip -= skipped
                if skipped == len(batch):
                    continue
                done += len(batch) - skipped
                yield batch.slice(skipped)
                del batch
        except MemoryError:
            if at_once == 1:
                raise
            at_once = max(1, at_once // _FEWER)
        else:
            return


def _rows_a_batch(footer: Footer, names: Names, batch_bytes: int, groups: Sequence[int]) -> int:
    total = sum(chunk.total_uncompressed_size for chunk in footer.chunks(groups, names))
    num_rows = sum(footer.metadata.row_group(group).num_rows for group in groups)
    return int(np.clip(batch_bytes * num_rows // max(total, 1), 1, MAX_BATCH_ROWS))
