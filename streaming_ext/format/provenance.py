"""Reading `documents/NNNNN.parquet`: which row of the source each document is, and how long.

Where a document stands in its source file: from its row in a part to its row in the file.

Rows of a part are counted over its spans. Where a file was cut, the parts before hold the rows
before, so the row in the file is known if they are in the same dataset:

    a file of 7 rows in parts 3 and 4, which hold 5 and 2: row 1 of part 4 is row 6 of the file
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import CorruptDatasetError, one_line
from streaming_ext.format.layout import SPLITS, Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import PartRecord, PartSummary
from streaming_ext.format.shuffled import Source

DOCUMENTS_SCHEMA = pa.schema([("row", pa.int64()), ("split", pa.string()), ("tokens", pa.uint32())])
# Of a shuffled dataset: the number of each document's source, what names it there however the file
# is cut, left out if that is its row, and its row there.
SHUFFLED_SCHEMA = pa.schema(
    [("source", pa.int32()), ("place", pa.int64()), *DOCUMENTS_SCHEMA],
)
KEPT_PREFIX = "column."  # before the names of kept columns, which may be called as one of ours
MAX_VALUE_BYTES: Final = 2**16  # of one text: it says something of a document, it is none
KEPT_TYPES: Final = (pa.large_string(), pa.int64(), pa.float64(), pa.bool_())
_BATCH_ROWS = 2**16
_MAX_THRIFT = 2**20  # strings and lists of a footer: a part has three columns, few row groups


@dataclass(frozen=True, slots=True)
class DocumentRows:
    """Some consecutive documents of a part, in the order of the source, or of their keys.

    Attributes:
        rows: row in the source file, int64 (n,).
        splits: index into `SPLITS`, int8 (n,).
        tokens: ids of each, its end-of-text id left out, int64 (n,).
        sources: number of the source, int64 (n,); None if the dataset is not shuffled.
        positions: what names each in its source, int64 (n,); None if it is not shuffled.
        values: of each kept column, by its name: (n,) each.
    """

    rows: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int8]
    tokens: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64] | None = None
    positions: npt.NDArray[np.int64] | None = None
    values: Mapping[str, pa.Array] = field(default_factory=dict)

    def of(self, split: Split) -> npt.NDArray[np.bool_]:
        """Which of them belong to a split."""
        mask: npt.NDArray[np.bool_] = self.splits == SPLITS.index(split)
        return mask


def documents_limit(num_documents: int, kept_columns: int = 0) -> int:
    """What the provenance of this many documents takes at most, in bytes.

    Args:
        num_documents: that it lists.
        kept_columns: whose values it holds.
    """
    each = 56 + kept_columns * (MAX_VALUE_BYTES + 16)
    return 2**20 * (1 + kept_columns) + each * min(num_documents, 2**27)


def count_documents(data: bytes) -> int:
    """How many documents a file lists, as its footer says.

    Raises:
        CorruptDatasetError: it is no such file.
    """
    with _open(data) as file:
        return int(file.metadata.num_rows)


def read_provenance(data: bytes) -> Iterator[DocumentRows]:
    """Read a file in bounded batches.

    Raises:
        CorruptDatasetError: it is damaged, or holds what no such file holds.
    """
    first = 0
    with _open(data) as file:
        batches = file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                raise CorruptDatasetError(
                    f"damaged from document {first} on: {one_line(error)}"
                ) from error
            if batch is None:
                return
            yield _convert(batch, first)
            first += len(batch)


def _open(data: bytes) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data),
            read_dictionary=["split"],  # however long the name, it is in memory once
            thrift_string_size_limit=_MAX_THRIFT,
            thrift_container_size_limit=_MAX_THRIFT,
        )
        schema = file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise CorruptDatasetError(f"not a whole Parquet file: {one_line(error)}") from error
    found = [
        (field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
        for field in schema
    ]
    schemas = (DOCUMENTS_SCHEMA, SHUFFLED_SCHEMA)
    allowed = [[(field.name, field.type) for field in schema] for schema in schemas]
    kept = [name.startswith(KEPT_PREFIX) and kind in KEPT_TYPES for name, kind in found]
    own = found[: kept.index(True)] if True in kept else found
    if own not in allowed or not all(kept[len(own) :]):
        expected = allowed[0]
        shown = [", ".join(f"{name}: {kind}" for name, kind in them) for them in (expected, found)]
        raise CorruptDatasetError(f"expected the columns {shown[0]}; it has {shown[1]}")
    return file


def _convert(batch: pa.RecordBatch, first: int) -> DocumentRows:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count and name != "place" and not name.startswith(KEPT_PREFIX):
            raise CorruptDatasetError(f"{column.null_count} nulls in {name} from row {first} on")
    split = batch.column("split")
    if len(split.dictionary) > len(SPLITS):
        raise CorruptDatasetError(
            f"{len(split.dictionary)} names of splits, expected {', '.join(SPLITS)}"
        )
    names = [name[:40] for name in split.dictionary.to_pylist()]
    if unknown := [name for name in names if name not in SPLITS]:
        raise CorruptDatasetError(f"the split {unknown[0]!r}, expected {', '.join(SPLITS)}")
    codes = np.array([SPLITS.index(name) for name in names], np.int8)
    rows = np.asarray(batch.column("row"))
    sources = positions = None
    if "source" in batch.schema.names:
        sources = np.asarray(batch.column("source")).astype(np.int64)
        positions = np.asarray(pc.coalesce(batch.column("place"), batch.column("row")))
    return DocumentRows(
        rows,
        codes[np.asarray(split.indices)],
        np.asarray(batch.column("tokens")).astype(np.int64),
        sources,
        positions,
        {
            name.removeprefix(KEPT_PREFIX): column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name.startswith(KEPT_PREFIX)
        },
    )


@dataclass(frozen=True, slots=True)
class SourceRow:
    """Of one document.

    Attributes:
        source: URL of the source file.
        row: of the document, from 0.
        from_byte: rows are counted from those that begin here on; 0: from the file's beginning.
    """

    source: str
    row: int
    from_byte: int = 0

    def __str__(self) -> str:
        behind = f" behind byte {self.from_byte:,}" if self.from_byte else ""
        return f"row {self.row}{behind} of {self.source}"


class RowsOfPart:
    """The positions of a part's documents."""

    def __init__(self, record: PartRecord, manifest: Manifest | None = None) -> None:
        """Look up what lies before.

        Args:
            record: of the part.
            manifest: of its dataset; without it, rows of a span are counted from the span on.
        """
        self._spans = record.made_of
        self._starts = [0, *accumulate(source_span.rows for source_span in self._spans)]
        span = self._spans[0].span
        self._from_byte = 0 if span is None else span[0]
        self._before = 0
        if self._from_byte and manifest is not None:
            before = rows_before(manifest.parts, record.part)
            if before is not None:
                self._from_byte, self._before = 0, before

    def files(self) -> list[tuple[str, int]]:
        """URL and `from_byte` of each span."""
        return [(source_span.source.url, self._from_byte) for source_span in self._spans]

    def of(self, row: int, source: int = 0) -> SourceRow:
        """The place of a row of the part; the number of a source is for shuffled ones."""
        number = min(bisect_right(self._starts, row), len(self._spans)) - 1
        return SourceRow(
            self._spans[number].source.url,
            row - self._starts[number] + self._before,
            self._from_byte,
        )

    def numbered(self, rows: Ints, sources: Ints) -> tuple[Ints, Ints]:
        """Of rows of the part, their numbers in `files` and rows in these files: (rows,) each."""
        starts = np.array(self._starts)
        number = np.searchsorted(starts, rows, side="right") - 1
        number = np.minimum(number, len(self._spans) - 1)
        return number, rows - starts[number] + self._before


class RowsOfSources:
    """The positions of the documents of a shuffled dataset, which name their sources by number."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def files(self) -> list[tuple[str, int]]:
        """URL and `from_byte` of each source."""
        return [
            (source.identity.url, 0 if source.span is None else source.span[0])
            for source in self._sources
        ]

    def numbered(self, rows: Ints, sources: Ints) -> tuple[Ints, Ints]:
        """Numbers in `files` and rows in these files; see `RowsOfPart.numbered`."""
        return sources, rows

    def of(self, row: int, source: int) -> SourceRow:
        """The place of a row of a source."""
        found = self._sources[source]
        return SourceRow(found.identity.url, row, 0 if found.span is None else found.span[0])


def rows_before(parts: Sequence[PartSummary], part: int) -> int | None:
    """Rows of the file that stand before a part that is a span of it; None if it is not known.

    Args:
        parts: of the dataset, in order.
        part: number of the part.
    """
    own = parts[part]
    rows, begin = 0, 0 if own.span is None else own.span[0]
    while begin:
        part -= 1
        earlier = parts[part] if part >= 0 else None
        if earlier is None or earlier.source.url != own.source.url or earlier.span is None:
            return None
        if earlier.span[1] != begin:
            return None
        rows, begin = rows + earlier.rows, earlier.span[0]
    return rows
