"""Lists of documents, `documents/NNNNN.parquet`: the row of each in its source, and its length.

Rows of a part are counted over all its spans. If a file was cut, the parts before hold its earlier
rows, so the row in the file is known if these parts are in the same dataset:

    a file of 7 rows in parts 3 and 4, which hold 5 and 2: row 1 of part 4 is row 6 of the file
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import CorruptDatasetError, UsageError, nearest
from streaming_ext.format.condition import Condition, fits
from streaming_ext.format.layout import SPLITS, Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.parquet import read_batches
from streaming_ext.format.record import PartRecord, PartSummary
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.shuffled import Source

DOCUMENTS_SCHEMA = pa.schema([("row", pa.int64()), ("split", pa.string()), ("tokens", pa.uint32())])
# A shuffled dataset also lists the number of each document's source, and the document's position
# there, which does not depend on how the file is cut; null if the position is the row.
SHUFFLED_SCHEMA = pa.schema(
    [("source", pa.int32()), ("place", pa.int64()), *DOCUMENTS_SCHEMA],
)
KEPT_PREFIX = "column."  # before the names of kept columns, which may equal one of ours
MAX_VALUE_BYTES: Final = 2**16  # of a text in a kept column, which is not meant for documents
_OWN_COLUMNS: Final = ("tokens", "source")  # columns of every document in a condition
_KEPT_TYPES: Final = (pa.large_string(), pa.int64(), pa.float64(), pa.bool_())


@dataclass(frozen=True, slots=True)
class ListedRows:
    """Some consecutive documents of a part, in the order of the source, or of their keys.

    Attributes:
        rows: row in the part, or in the source if the dataset is shuffled, int64 (n,).
        splits: index into `SPLITS`, int8 (n,).
        tokens: number of ids, without the end-of-text id, int64 (n,).
        sources: number of the source, int64 (n,); None if the dataset is not shuffled.
        positions: position in the source, int64 (n,); None if the dataset is not shuffled.
        values: the values of each kept column, by its name: (n,) each.
    """

    rows: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int8]
    tokens: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64] | None = None
    positions: npt.NDArray[np.int64] | None = None
    values: Mapping[str, pa.Array] = field(default_factory=dict)

    def of(self, split: Split) -> npt.NDArray[np.bool_]:
        """Find the documents of a split."""
        mask: npt.NDArray[np.bool_] = self.splits == SPLITS.index(split)
        return mask

    def where(self, condition: Condition, origins: "SourceRows") -> Flags:
        """Find the documents for which a condition holds: (n,).

        The condition may name kept columns, `tokens`, and `source`, the URL of the file; see
        `require_columns`. A kept column with one of these names takes precedence.

        Args:
            condition: the condition.
            origins: the source rows of the documents.

        Raises:
            UsageError: a column is compared with values of another kind.
        """
        columns: dict[str, pa.Array] = {}
        for name, kind in condition.columns.items():
            if name in self.values:
                column = self.values[name]
            elif name == "source":
                sources = self.rows if self.sources is None else self.sources
                numbers, _ = origins.numbered(self.rows, sources)
                column = pa.array([url for url, _ in origins.files]).take(pa.array(numbers))
            else:
                column = pa.array(self.tokens)
            if column.null_count == len(column):
                column = pa.nulls(len(column))  # a column without values is listed with type text
            if not fits(kind, column.type):
                raise UsageError(
                    f"column {name!r} is of type {column.type}, and --where compares it with a "
                    f"{kind}"
                )
            columns[name] = column
        return condition.holds(columns)


def require_columns(condition: Condition, kept: Sequence[str], *, where: str) -> None:
    """Refuse a condition that names a column that no document has.

    Args:
        condition: the condition.
        kept: the kept columns of the dataset.
        where: the dataset, for messages.

    Raises:
        UsageError: the message names the existing columns.
    """
    known = [*dict.fromkeys([*kept, *_OWN_COLUMNS])]
    if missing := [name for name in condition.columns if name not in known]:
        option = " --characters" if missing[0] == "characters" else ""
        raise UsageError(
            f"{where} has no column {missing[0]!r}; its documents have {', '.join(known)}. Correct "
            f"--where, or add the column with `shardmill annotate{option}`."
            f"{nearest(missing[0], known)}"
        )


def documents_limit(num_documents: int, kept_columns: int = 0) -> int:
    """Return an upper bound of the bytes of a list of documents.

    Args:
        num_documents: the number of documents in the list.
        kept_columns: the number of kept columns in the list.
    """
    each = 56 + kept_columns * (MAX_VALUE_BYTES + 16)
    return 2**20 * (1 + kept_columns) + each * min(num_documents, 2**27)


def added_values(
    manifest: Manifest, record: PartRecord, read: Callable[[FileRecord], bytes]
) -> dict[str, pa.Array]:
    """Return the values that were added to a part's documents, by column: (documents,) each.

    Args:
        manifest: the manifest of the dataset.
        record: the record of the part.
        read: a function that reads a file of the manifest.

    Raises:
        CorruptDatasetError: a file is damaged, or holds the values of other documents.
    """
    documents = record.documents_kept
    names = [name for each in manifest.added for name in each.columns]
    values = {name: pa.nulls(documents, pa.large_string()) for name in names}
    for file, columns in manifest.added_to(record.part).items():
        data = read(file)
        try:
            values |= read_added(data, columns, documents)
        except CorruptDatasetError as error:
            raise CorruptDatasetError(f"{file.path}: {error}") from error
    return values


def read_added(file: bytes, columns: Sequence[str], documents: int) -> dict[str, pa.Array]:
    """Return the values of some columns that a file adds to this many documents.

    Raises:
        CorruptDatasetError: the file is damaged, or holds other columns or another number of
            documents.
    """
    batches = [*read_batches(file, pa.schema([]), further=_is_kept)]
    names = [f"{KEPT_PREFIX}{name}" for name in columns]
    found = sum(map(len, batches)), [batch.schema.names for batch in batches[:1]]
    if found != (documents, [names] * bool(documents)):
        raise CorruptDatasetError(
            f"columns {found[1]} of {found[0]} documents, expected {names} of {documents}"
        )
    return {
        column: pa.concat_arrays([batch[name] for batch in batches])
        for column, name in zip(columns if batches else (), names, strict=False)
    }


def _is_kept(column: pa.Field) -> bool:
    return column.name.startswith(KEPT_PREFIX) and column.type in _KEPT_TYPES


def read_provenance(
    data: bytes, added: Mapping[str, pa.Array] | None = None
) -> Iterator[ListedRows]:
    """Read a file in bounded batches.

    Args:
        data: the file.
        added: the values that were added to all documents, by column.

    Raises:
        CorruptDatasetError: the file is damaged, or has other columns or splits.
    """
    end = 0
    for batch in read_batches(
        data,
        DOCUMENTS_SCHEMA,
        SHUFFLED_SCHEMA,
        nullable=["place"],
        further=_is_kept,
        dictionaries=["split"],
    ):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        split, rows = columns["split"], np.asarray(columns["row"])
        names = [name[:40] for name in split.dictionary[: len(SPLITS) + 1].to_pylist()]
        if len(names) > len(SPLITS) or not {*names} <= {*SPLITS}:
            raise CorruptDatasetError(f"its splits are {names}, expected {', '.join(SPLITS)}")
        codes = np.array([SPLITS.index(name) for name in names], np.int8)
        first, end = end, end + len(rows)
        values = {name: column.slice(first, len(rows)) for name, column in (added or {}).items()}
        sources = positions = None
        if "source" in columns:
            sources = np.asarray(columns["source"]).astype(np.int64)
            positions = np.asarray(pc.coalesce(columns["place"], columns["row"]))
        yield ListedRows(
            rows,
            codes[np.asarray(split.indices)],
            np.asarray(columns["tokens"]).astype(np.int64),
            sources,
            positions,
            {
                name.removeprefix(KEPT_PREFIX): column
                for name, column in columns.items()
                if name.startswith(KEPT_PREFIX)
            }
            | values,
        )


@dataclass(frozen=True, slots=True)
class SourceRow:
    """The row of a source file that a document comes from.

    Attributes:
        source: URL of the source file.
        row: the row of the document, from 0.
        from_byte: the byte of the file from which rows are counted.
    """

    source: str
    row: int
    from_byte: int = 0

    def __str__(self) -> str:
        after = f" behind byte {self.from_byte:,}" if self.from_byte else ""
        return f"row {self.row}{after} of {self.source}"


@dataclass(frozen=True)
class SourceRows:
    """The rows of source files that documents come from.

    Attributes:
        files: URL of each file, and the byte from which its rows are counted.
        starts: first row of each span of a part; None if documents name their source by number.
        before: number of rows of the file before the first span, if rows are counted from the
            file's beginning; else 0.
    """

    files: list[tuple[str, int]]
    starts: Ints | None = None
    before: int = 0

    @classmethod
    def of_part(cls, record: PartRecord, manifest: Manifest | None = None) -> Self:
        """Return the source rows of a part's documents, which are found by their rows in the part.

        Args:
            record: the record of the part.
            manifest: the manifest of the dataset; without it, rows of a span are counted from the
                beginning of the span.
        """
        spans = record.made_of
        from_byte, before = spans[0].span[0] if spans[0].span else 0, 0
        if from_byte and manifest is not None:
            known = rows_before(manifest.parts, record.part)
            if known is not None:
                from_byte, before = 0, known
        starts = np.array([0, *accumulate(span.rows for span in spans[:-1])])
        return cls([(span.source.url, from_byte) for span in spans], starts, before)

    @classmethod
    def of_sources(cls, sources: Sequence[Source]) -> Self:
        """Return the source rows of a shuffled dataset, whose documents name sources by number."""
        return cls([(each.identity.url, each.span[0] if each.span else 0) for each in sources])

    def numbered(self, rows: Ints, sources: Ints) -> tuple[Ints, Ints]:
        """Find the index in `files` of each document's file, and its row there: (documents,) each.

        Args:
            rows: the row of each document in the part, or in its source if the dataset is shuffled.
            sources: the number of each document's source if the dataset is shuffled; else not used.
        """
        if self.starts is None:
            return sources, rows
        numbers = np.searchsorted(self.starts, rows, side="right") - 1
        return numbers, rows - self.starts[numbers] + self.before

    def of(self, row: int, source: int = 0) -> SourceRow:
        """Return the row of a source file that one document comes from; see `numbered`."""
        (number,), (own,) = self.numbered(np.array([row]), np.array([source]))
        url, from_byte = self.files[number]
        return SourceRow(url, int(own), from_byte)


def rows_before(parts: Sequence[PartSummary], part: int) -> int | None:
    """Count the rows of a file before a part that is a span of it; None if that is not known.

    Args:
        parts: the parts of the dataset, in order.
        part: number of the part.
    """
    own = parts[part]
    rows, begin = 0, 0 if own.span is None else own.span[0]
    for number in range(part - 1, -1, -1):
        if not begin:
            break
        earlier = parts[number]
        if earlier.source.url != own.source.url or not earlier.span or earlier.span[1] != begin:
            return None
        rows, begin = rows + earlier.rows, earlier.span[0]
    return None if begin else rows
