"""What a source format is: a look into a file, and its documents in batches.

A format is a class in `readers/` or `token_sets/` and its name in `text/formats.py`. Most need no
more than `ObjectFormat.values` or `TableFormat.tables`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.errors import SourceError, UsageError, one_line
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import ChosenColumns, check_schema
from streaming_ext.text.documents.document_rows import (
    BATCH_BYTES,
    BadDocument,
    DocumentBatch,
    DocumentRows,
)
from streaming_ext.text.documents.files import SourceBytes, Span, local_bytes
from streaming_ext.text.documents.objects import (
    MAX_RECORDS,
    Record,
    Value,
    batches_of_values,
    check_fields,
    records_of_values,
)
from streaming_ext.text.documents.streams import EndOfHeadError, Stream, open_stream
from streaming_ext.text.memory import VARIABLE as MEMORY_VARIABLE
from streaming_ext.text.memory import memory_limit

LENGTH_BYTES = 4  # that a text is taken to need in a file beside its own bytes
LOOK_BYTES = 2**20  # of a file, unpacked: a look reads no large document
_LOOK_DOCUMENTS = 50


@dataclass(frozen=True, slots=True)
class Block:
    """A run of rows that can be read without what stands before it.

    Attributes:
        rows: how many; None where only reading would tell.
        size: in bytes.
        span: what `SourceFormat.read_from` takes for it; None for the whole file.
    """

    rows: int | None
    size: int
    span: Span | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FileLook:
    """What a look into a file tells, without reading its documents.

    Attributes:
        blocks: where the file can be entered, and so be cut.
        plain: a block's size is that of its texts, not packed, and of `LENGTH_BYTES` for each;
            else it is that of the span of the file.
        needed: the only ranges of bytes that reading the text takes, merged and in order; None
            where it takes all.
    """

    blocks: tuple[Block, ...]
    plain: bool = False
    needed: tuple[Span, ...] | None = None


class SourceFormat(ABC):
    """One format of source files. `documents` is all that tokenizing and verifying need.

    What a format leaves out is not refused by any of them: files are fetched whole, and a missing
    column is found when the file is read.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    must_be_named: ClassVar[bool] = False  # folders hold such files for other reasons too
    has_records: ClassVar[bool] = True  # a document has fields beside its text: `records`

    @abstractmethod
    def documents(
        self, file: SourceBytes, rows: DocumentRows, span: Span | None
    ) -> Iterator[DocumentBatch]:
        """The documents of a file in order.

        Args:
            file: its bytes, at least those that `look` says are needed.
            rows: makes batches of them, and says what is read.
            span: read this span of the file only: what begins in these bytes, in rows numbered
                from the span's own first. Spans end to end hold what the file holds.

        Raises:
            SourceError: the file is damaged, or made to fill memory or disk; the message names the
                row from which on.
            UsageError: the file holds no such text.
        """

    def records(
        self, file: SourceBytes, options: ReadOptions, span: Span | None
    ) -> Iterator[list[Record]]:
        """The documents of a file in order, with all their fields, at most `MAX_RECORDS` at once.

        Raises:
            SourceError: the file is damaged; the message names the place.
        """
        raise UsageError(f"{file.name}: a document of the format {self.name} is its text alone.")

    def is_in_folder(self, name: str) -> bool:
        """Whether a file of this name, below a folder that is a source, is one of its sources."""
        return not self.must_be_named and name.endswith(self.suffixes)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook | None:
        """What can be told without reading the documents; None where nothing can.

        Raises:
            SourceError: the file is damaged or gone.
            UsageError: it holds no such text.
        """
        return FileLook(blocks=(Block(None, file.size),))

    def can_be_cut(self, file: SourceBytes) -> bool:
        """Whether `documents` takes a span of this file: it can be entered anywhere. Reads little.

        Raises:
            SourceError: the file is damaged or gone.
        """
        return False

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """All that reading a span takes: ranges of bytes, in order, that do not overlap.

        Raises:
            SourceError: the file is damaged or gone.
            UsageError: it holds no such text, or cannot be cut.
        """
        raise UsageError(f"{file.name}: files of the format {self.name} cannot be cut.")

    def beside(self, path: Path) -> tuple[Path, ...]:
        """Further files that reading one on this machine takes: they pin its content with it."""
        return ()

    def outside(self, path: Path, options: ReadOptions, span: Span | None) -> bytes:
        """What other files on this machine hold of a file's documents: it pins the file with it.

        Raises:
            SourceError: a file is damaged or gone.
        """
        return b""

    def read_from(
        self,
        file: SourceBytes,
        options: ReadOptions,
        *,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[DocumentBatch]:
        """See `documents`; of a file that need not be here, of which only the span is read."""
        if span is not None and not self.can_be_cut(file):
            raise SourceError(f"{file.name}: the file cannot be entered in the middle.")
        rows = DocumentRows(
            options,
            where=file.name,
            size=file.size,
            batch_bytes=batch_bytes,
            begin=span[0] if span else 0,
        )
        try:
            yield from self.documents(file, rows, span)
        except MemoryError as error:
            raise SourceError(
                f"{file.name}: what stands from row {rows.row} on takes more memory than the "
                f"{memory_limit() / 2**30:.3g} GiB that a worker may have. Leave the file out, or "
                f"set {MEMORY_VARIABLE} higher."
            ) from error

    def read(
        self,
        path: Path,
        options: ReadOptions,
        *,
        name: str | None = None,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[DocumentBatch]:
        """See `documents`; of a file on this machine.

        Args:
            path: where its bytes lie.
            options: which text to read.
            name: what messages call the file; its path by default.
            span: of the span.
            batch_bytes: text a batch, in bytes; a longer document stands alone.
        """
        with local_bytes(path, name=name or str(path)) as file:
            yield from self.read_from(file, options, span=span, batch_bytes=batch_bytes)

    def read_records(
        self, path: Path, options: ReadOptions, *, name: str, span: Span | None = None
    ) -> Iterator[list[Record]]:
        """See `records`; of a file on this machine."""
        with local_bytes(path, name=name) as file:
            yield from self.records(file, options, span)


class ObjectFormat(SourceFormat):
    """A format whose documents are objects that are decoded one by one, from a stream."""

    @abstractmethod
    def values(self, stream: Stream, where: str) -> Iterator[Value]:
        """The values of a file in order, each of which should be an object.

        Raises:
            SourceError: the file is damaged; the message names the place.
        """

    def stream(
        self, file: SourceBytes, span: Span | None = None, *, head: int | None = None
    ) -> AbstractContextManager[Stream]:
        """The unpacked bytes of a file, or of a span of it."""
        return open_stream(file, head=head)

    def documents(
        self, file: SourceBytes, rows: DocumentRows, span: Span | None
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`."""
        with self.stream(file, span) as stream:
            values = self.values(stream, file.name)
            yield from batches_of_values(values, rows, fraction=lambda: stream.fraction)

    def records(
        self, file: SourceBytes, options: ReadOptions, span: Span | None
    ) -> Iterator[list[Record]]:
        """See `SourceFormat.records`."""
        with self.stream(file, span) as stream:
            yield from records_of_values(self.values(stream, file.name), options, name=file.name)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook | None:
        """See `SourceFormat.look`: the first documents name the fields."""
        first: list[Record] = []
        with suppress(EndOfHeadError), self.stream(file, head=LOOK_BYTES) as stream:
            for one in islice(self.values(stream, file.name), _LOOK_DOCUMENTS):
                first += [one.value] if isinstance(one.value, dict) else []
        check_fields(first, options, where=file.name)
        return super().look(file, options)


Names = Sequence[str] | None  # of columns; None for all of them


class Table(NamedTuple):
    """Some consecutive rows of a file; see `DocumentRows.batches`."""

    batch: pa.RecordBatch
    fraction: float
    places: npt.NDArray[np.int64] | None = None
    bad: Sequence[BadDocument] = ()


class TableFormat(SourceFormat):
    """A format whose rows come as tables of Arrow's."""

    @abstractmethod
    def schema(self, file: SourceBytes, options: ReadOptions) -> pa.Schema:
        """The columns of a file."""

    @abstractmethod
    def tables(
        self, file: SourceBytes, rows: DocumentRows, names: Names, span: Span | None
    ) -> Iterator[Table]:
        """The rows of a file, or of a span of it, in order.

        Args:
            file: its bytes.
            rows: says how much is read at once, and how far reading has come.
            names: of the columns that are read; all of them unless given.
            span: of the span.
        """

    def documents(
        self, file: SourceBytes, rows: DocumentRows, span: Span | None
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`."""
        with faults(file, self.name):
            schema = self.schema(file, rows.options)
        columns = ChosenColumns.of(schema, rows.options, where=file.name)
        with faults(file, self.name, rows):
            for table in self.tables(file, rows, columns.names, span):
                texts, compared = columns.of_batch(table.batch)
                yield from rows.batches(texts, table.fraction, table.bad, compared, table.places)
                del table, texts, compared  # before the next is read: one may be large

    def records(
        self, file: SourceBytes, options: ReadOptions, span: Span | None
    ) -> Iterator[list[Record]]:
        """See `SourceFormat.records`."""
        rows = DocumentRows(options, where=file.name, size=file.size)
        with faults(file, self.name, rows):
            for table in self.tables(file, rows, None, span):
                for first in range(0, len(table.batch), MAX_RECORDS):
                    yield table.batch.slice(first, MAX_RECORDS).to_pylist()
                rows.row += len(table.batch)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook | None:
        """See `SourceFormat.look`."""
        with faults(file, self.name):
            schema = self.schema(file, options)
        check_schema(schema, options, where=file.name)
        return super().look(file, options)


@contextmanager
def faults(file: SourceBytes, kind: str, rows: DocumentRows | None = None) -> Iterator[None]:
    """Name the file, and the row from which on it is damaged, where Arrow finds a fault.

    Raises:
        SourceError: in place of what Arrow raises.
    """
    where = file.name
    try:
        yield
    except MemoryError:  # also one of Arrow's
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        problem = f"not a whole {kind} file"
        if rows is not None:
            problem = f"damaged from row {(rows.rows_before or 0) + rows.row} on"
        raise SourceError(
            f"{where}: {problem} ({one_line(error)}). Fetch it again, or leave it out."
        ) from error
