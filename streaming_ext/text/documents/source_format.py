"""The interface of source formats: checks of a file, and its documents in batches.

A format is a class in `readers/` or `token_sets/`, listed in `text/formats.py`. Most need only
`ObjectFormat.values` or `TableFormat.tables`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, NamedTuple

import pyarrow as pa

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import ShardmillError, SourceError, one_line
from streaming_ext.base.memory import VARIABLE as MEMORY_VARIABLE
from streaming_ext.base.memory import memory_limit
from streaming_ext.format.condition import comparable
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import check_schema, column_at, paths_of
from streaming_ext.text.documents.document_rows import (
    BATCH_BYTES,
    BadRow,
    DocumentBatch,
    DocumentRows,
)
from streaming_ext.text.documents.files import (
    EndOfHeadError,
    LocalBytes,
    SourceBytes,
    Span,
    Stream,
)
from streaming_ext.text.documents.objects import (
    MAX_RECORDS,
    ParsedValue,
    Record,
    batches_of_values,
    missing_fields,
    records_of_values,
)

Lacking = Mapping[str, str]  # a message for each column that a file lacks
LOOK_BYTES = 2**20  # that a look reads of a file, unpacked; large documents are not read


class FileBlock(NamedTuple):
    """Consecutive rows that can be read without the rows before them.

    Attributes:
        size: the size of the block in bytes.
        span: the argument of `SourceFormat.read`; None for the whole file.
    """

    size: int
    span: Span | None = None


class SourceFormat(ABC):
    """A format of source files. Tokenizing and verifying need only `documents`.

    The defaults refuse nothing: files are fetched whole, and a missing column is found when the
    file is read.

    Attributes:
        length_bytes: the bytes per text in a block beyond the text, if the size of a block is the
            unpacked size of its texts; None if it is the size of the span.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    length_bytes: ClassVar[int | None] = None
    must_be_named: ClassVar[bool] = False  # true if folders hold such files for other reasons too

    @abstractmethod
    def documents(self, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """Yield the documents of a file or span in order.

        Args:
            rows: the file, the span and the options; `rows.batches` makes the batches. Rows are
                numbered from the first of the span. Adjacent spans hold all documents of a file.

        Raises:
            SourceError: the file is damaged, or made to fill memory or disk; the message names the
                first row that cannot be read.
            UsageError: the file holds no such text.
        """

    def records(self, rows: DocumentRows) -> Iterator[list[Record]]:
        """Yield the documents in order, some at a time, with all fields that their format has.

        Raises:
            SourceError: the file is damaged; the message names the location.
        """
        for batch in self.documents(rows):
            yield [{"text": text} for text in batch.texts.to_pylist()]

    def is_in_folder(self, name: str) -> bool:
        """Return whether a file of this name is a source if a folder above it is."""
        return not self.must_be_named and name.endswith(self.suffixes)

    def check(self, file: SourceBytes, options: ReadOptions) -> Lacking:
        """Refuse a file without such text, before any work; this reads little.

        Returns:
            a message for each other column that the file lacks; the column reads as null.

        Raises:
            SourceError: the file is damaged or gone.
            UsageError: the file holds no such text.
        """
        return {}

    def blocks(self, file: SourceBytes, options: ReadOptions) -> Sequence[FileBlock]:
        """Return the blocks of a file that can be read alone; none if their sizes are unknown.

        Raises:
            SourceError: the file is damaged or gone.
            UsageError: the file holds no such text.
        """
        return (FileBlock(file.size),)

    def can_be_cut(self, file: SourceBytes) -> bool:
        """Return whether `documents` takes any span of this file; this reads little.

        Raises:
            SourceError: the file is damaged or gone.
        """
        return False

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span | None) -> Sequence[Span]:
        """Return the ranges of bytes that reading a span or the file needs, in order, disjoint.

        Raises:
            SourceError: the file is damaged or gone.
            UsageError: the file holds no such text.
        """
        return ((0, file.size),)

    def outside(self, path: Path, options: ReadOptions, span: Span | None) -> list[str]:
        """Return hashes of data on a file's documents in other local files, for its identity.

        Raises:
            SourceError: a file is damaged or gone.
        """
        return []

    def read(
        self,
        file: SourceBytes | Path,
        options: ReadOptions,
        *,
        name: str | None = None,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[DocumentBatch]:
        """Read the documents of a file or span; see `documents` and `DocumentRows`.

        Of a remote file, only the bytes of the span are read. `name` is the name of a local file in
        messages, by default its path.
        """
        if isinstance(file, Path):
            file = LocalBytes(file, name or str(file))
        if span is not None and not self.can_be_cut(file):
            raise SourceError(f"{file.name}: the file cannot be entered in the middle.")
        rows = DocumentRows(file, options, span=span, batch_bytes=batch_bytes)
        try:
            yield from self.documents(rows)
        except MemoryError as error:
            raise SourceError(
                f"{file.name}: from row {rows.row} on, reading takes more memory than the "
                f"{memory_limit() / 2**30:.3g} GiB that a worker may have. Leave the file out, or "
                f"set {MEMORY_VARIABLE} higher."
            ) from error


class ObjectFormat(SourceFormat):
    """A format whose documents are objects that are decoded one by one from a stream."""

    look_bytes: ClassVar[int] = LOOK_BYTES
    has_records: ClassVar[bool] = True  # true if a document has fields besides its text

    @abstractmethod
    def values(self, stream: Stream, options: ReadOptions) -> Iterator[ParsedValue]:
        """Yield the values of a file in order; each should be an object.

        Raises:
            SourceError: the file is damaged; the message names the location.
        """

    def stream(self, file: SourceBytes, span: Span | None, head: int | None = None) -> Stream:
        """Open the unpacked bytes of a file, or of a span of it; see `Stream`."""
        return Stream(file, span=span, head=head)

    def sound_values(self, stream: Stream, options: ReadOptions) -> Iterator[ParsedValue]:
        """See `values`; an error of a library becomes one that names the last value."""
        read = ""
        with faults(stream.file, self.name, lambda: read):
            for value in self.values(stream, options):
                read = f", damaged or cut short after {value.location}"
                yield value
                del value  # before the next is read, since it may be large

    def documents(self, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`."""
        with self.stream(rows.file, rows.span) as stream:
            yield from batches_of_values(self.sound_values(stream, rows.options), rows, stream)

    def records(self, rows: DocumentRows) -> Iterator[list[Record]]:
        """See `SourceFormat.records`."""
        if not self.has_records:
            yield from super().records(rows)
            return
        with self.stream(rows.file, rows.span) as stream:
            yield from records_of_values(self.sound_values(stream, rows.options), rows)

    def check(self, file: SourceBytes, options: ReadOptions) -> Lacking:
        """See `SourceFormat.check`: the first documents name the fields."""
        with self.stream(file, None, self.look_bytes) as stream:
            values = self.sound_values(stream, options)
            objects = (one.value for one in values if isinstance(one.value, dict))
            return missing_fields(objects, options, where=file.name)


Names = Sequence[str] | None  # of columns; None for all columns


class Table(NamedTuple):
    """Some consecutive rows of a file; see `DocumentRows.batches`.

    Attributes:
        batch: the rows.
    """

    batch: pa.RecordBatch
    fraction: float
    bad: Sequence[BadRow] = ()
    positions: Ints | None = None


class TableFormat(SourceFormat):
    """A format whose rows are read as Arrow tables."""

    @abstractmethod
    def schema(self, file: SourceBytes, options: ReadOptions) -> pa.Schema:
        """Return the columns of a file."""

    @abstractmethod
    def tables(self, rows: DocumentRows, names: Names) -> Iterator[Table]:
        """Yield the rows of a file or span in order, with the columns of these names."""

    def documents(self, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`."""
        options = rows.options
        with faults(rows.file, self.name):
            schema = self.schema(rows.file, options)
            paths = paths_of(schema, options, where=rows.file.name)
        with faults(rows.file, self.name, lambda: f", damaged from row {rows.file_row} on"):
            names = [".".join(path) for path in paths.values() if path]
            for batch, fraction, bad, positions in self.tables(rows, names):
                columns = [
                    comparable(column_at(batch, paths[name])).cast(pa.large_string())
                    for name in options.columns
                ]
                columns += [comparable(column_at(batch, paths[name])) for name in options.compared]
                yield from rows.batches(columns, fraction, bad, positions)
                del batch, columns  # before the next are read, since they may be large

    def records(self, rows: DocumentRows) -> Iterator[list[Record]]:
        """See `SourceFormat.records`."""
        with faults(rows.file, self.name, lambda: f", damaged from row {rows.file_row} on"):
            for batch, *_ in self.tables(rows, None):
                for first in range(0, len(batch), MAX_RECORDS):
                    yield batch.slice(first, MAX_RECORDS).to_pylist()
                rows.row += len(batch)

    def check(self, file: SourceBytes, options: ReadOptions) -> Lacking:
        """See `SourceFormat.check`."""
        with faults(file, self.name):
            return check_schema(self.schema(file, options), options, where=file.name)


@contextmanager
def faults(
    file: SourceBytes, kind: str, location: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Turn any error of a library into one that names the file and the damage.

    Raises:
        SourceError: a library raised an error.
    """
    try:
        yield
    except (MemoryError, ImportError, ShardmillError, EndOfHeadError):
        raise
    except Exception as error:
        if isinstance(error.__cause__, ShardmillError | EndOfHeadError):
            raise error.__cause__ from error  # libraries wrap the errors of a stream
        raise SourceError(
            f"{file.name}: not a whole {kind} file{location()} ({one_line(error)}). Fetch it "
            "again, or leave it out."
        ) from error
