"""Batches of documents from the texts of consecutive rows: joined, bounded, without nulls.

All formats go through this module, so the same rows give the same documents in each format.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import SourceError
from streaming_ext.format.condition import is_text
from streaming_ext.format.filters import FilterName
from streaming_ext.format.provenance import MAX_VALUE_BYTES
from streaming_ext.format.record import RowCounts
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import stored, too_long
from streaming_ext.text.documents.files import SourceBytes, Span
from streaming_ext.text.documents.text_array import cut_by_bytes, text_buffers

BATCH_BYTES = 16 * 2**20  # of text: large enough that the overhead of a batch does not matter
MAX_BATCH_ROWS = 2**16
MAX_TEXT_BYTES = 2**28  # of one document: far more than people write
_LARGEST_GROWTH = 1000  # bytes of text per byte of file: real text gives 2 to 5, forms and logs 50
_ALWAYS_ALLOWED_BYTES = 2**30

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read.

    Attributes:
        row: the number of the row in the file.
        location: the location of the row, for display.
        reason: the fault, on one line.
    """

    row: int
    location: str
    reason: str


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Some consecutive rows of a source file.

    Attributes:
        rows: the row of each text, counted from where reading began, int64 (num_texts,).
        texts: the texts that are neither null nor bad.
        num_rows: the number of rows read, including null and bad rows.
        fraction: the fraction of the file or span that is read up to this batch, in [0, 1].
        positions: the identity of each text in its file, however it is cut, int64 (num_texts,).
        bad: the rows that cannot be read, in order.
        dropped: the number of rows that each filter dropped, by its name.
        values: the values of each kept column, in the order of `ReadOptions.kept`: (num_texts,)
            each.
    """

    rows: Ints
    texts: pa.LargeStringArray
    num_rows: int
    fraction: float
    positions: Ints
    bad: tuple[BadRow, ...] = ()
    dropped: Mapping[FilterName, int] = field(default_factory=dict)
    values: tuple[pa.Array, ...] = ()

    @property
    def nulls(self) -> int:
        """Number of rows that hold no text."""
        left_out = len(self.bad) + sum(self.dropped.values())
        return self.num_rows - len(self.texts) - left_out

    @property
    def counts(self) -> RowCounts:
        """Counts of the rows; a text without a byte counts as empty."""
        return RowCounts(
            rows=self.num_rows,
            null_documents=self.nulls,
            empty_documents=int((np.diff(text_buffers(self.texts)[1]) == 0).sum()),
            bad_documents=len(self.bad),
            dropped_documents=dict(self.dropped),
        )


class DocumentRows:
    """A builder of batches from the rows of a file, or of a span of it, as they are read.

    Attributes:
        file: the bytes of the file, at least those that are needed.
        options: the text to read.
        span: the range of bytes in which the rows to read begin; all by default.
        batch_bytes: the bytes of text per batch; a longer document is a batch of its own.
        row: the next row, counted from where reading began.
        rows_before: the number of rows before the span, if known.
    """

    def __init__(
        self,
        file: SourceBytes,
        options: ReadOptions,
        *,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        """Prepare for the first row; see the attributes."""
        self.file, self.options, self.span, self.batch_bytes = file, options, span, batch_bytes
        self._left = _LARGEST_GROWTH * file.size + _ALWAYS_ALLOWED_BYTES
        self._fraction = 0.0
        self.row = 0
        self.rows_before: int | None = None
        self._bad: dict[int, BadRow] = {}  # by number among the rows in hand

    @property
    def file_row(self) -> int:
        """Next row, counted from the beginning of the file if the rows before are known."""
        return (self.rows_before or 0) + self.row

    def batches(
        self,
        columns: Sequence[pa.Array],
        fraction: float,
        bad: Sequence[BadRow] = (),
        positions: Ints | None = None,
    ) -> Iterator[DocumentBatch]:
        """Yield the documents of the next rows.

        Args:
            columns: the columns of `wanted_columns`, null for a missing value: (rows,) each.
            fraction: the fraction of the file that is read with these rows, in [0, 1].
            bad: the rows that could not be read, in order; they are null in all columns.
            positions: see `DocumentBatch`; the rows of the file by default.

        Raises:
            SourceError: a document is bad and must not be skipped; or the file is made to fill
                memory or disk.
        """
        first, before, options = self.row, self._fraction, self.options
        self._bad = {one.row - first: one for one in bad}
        for one in bad:
            self.refuse(one)
        count = len(options.columns)
        compared = dict(zip(options.compared, columns[count:], strict=True))
        values = self._valid([stored(compared[name]) for name in options.kept], options.kept)
        for name, column in zip(options.kept, values, strict=True):
            for row in too_long(column):
                self._note(row, f"{name!r} is longer than {MAX_VALUE_BYTES} bytes")
        texts = join(self._valid(columns[:count], options.columns), options.separator)
        sizes = np.diff(text_buffers(texts)[1])
        for row in np.flatnonzero(sizes > MAX_TEXT_BYTES).tolist():
            self._note(row, f"a text of {sizes[row]} bytes, at most {MAX_TEXT_BYTES} are read")
        if self._bad:
            texts = _without(texts, [*self._bad])
        self._count(texts)
        is_bad = np.zeros(len(texts), bool)
        is_bad[[*self._bad]] = True
        stay, drops = self._filtered(texts, compared, is_bad)
        rows = np.arange(first, first + len(texts), dtype=np.int64)
        if positions is None:
            positions = rows + (self.rows_before or 0)
        for start, end in cut_by_bytes(texts, self.batch_bytes):
            own, chosen = slice(start, end), stay[start:end]
            found = [column[own] for column in (texts, *values)]
            if not chosen.all():
                found = [column.filter(pa.array(chosen)) for column in found]
            yield DocumentBatch(
                rows=rows[own][chosen],
                texts=found[0],
                num_rows=end - start,
                fraction=min(1.0, before + (fraction - before) * end / len(texts)),
                positions=positions[own][chosen],
                bad=tuple(self._bad[row] for row in start + np.flatnonzero(is_bad[own])),
                dropped={name: int(dropped[own].sum()) for name, dropped in drops.items()},
                values=tuple(found[1:]),
            )
        self.row, self._fraction = first + len(texts), fraction

    def refuse(self, bad: BadRow) -> None:
        """Raise an error for a bad document, unless bad documents are skipped.

        Raises:
            SourceError: bad documents are not skipped; the message names the location.
        """
        if self.options.on_bad_document == "fail":
            raise SourceError(
                f"{self.file.name}: {bad.location}: {bad.reason}. Correct it, leave the file out, "
                "or pass --on-bad-document skip."
            )

    def _note(self, row: int, reason: str) -> None:
        """Add a bad row of the rows in hand; an earlier fault of the row stays."""
        bad = BadRow(self.row + row, self._location(row), reason)
        self.refuse(self._bad.setdefault(row, bad))

    def _valid(self, columns: Sequence[pa.Array], of: Sequence[str]) -> list[pa.Array]:
        """Return the columns, null where a text is not UTF-8; Arrow does not check this itself."""
        found = [*columns]
        for number, (name, column) in enumerate(zip(of, columns, strict=True)):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                faults = dict(_no_utf8(column)) if is_text(column.type) else {}
                if not faults:
                    raise  # the array itself is damaged
                for row, byte in faults.items():
                    self._note(row, f"no valid UTF-8 at byte {byte} of its {name}")
                found[number] = _without(column, [*faults])
        return found

    def _filtered(
        self, texts: pa.LargeStringArray, compared: Mapping[str, pa.Array], is_bad: Flags
    ) -> tuple[Flags, dict[FilterName, Flags]]:
        """Find the rows that stay, and the rows that each filter drops: (rows,) each.

        Args:
            texts: the texts of the rows, null for a bad row: (rows,).
            compared: the columns of the condition, by their names.
            is_bad: the rows that are left out already: (rows,).
        """
        stay, drops = ~is_bad, dict[FilterName, Flags]()
        filters = self.options.filters
        if filters.condition is not None:
            holds = filters.condition.holds(compared)
            drops["where"] = stay & ~holds
            stay &= holds
        stay &= np.asarray(texts.is_valid())
        for name, own in filters.by_text(texts).items():
            drops[name] = stay & own
            stay &= ~own
        return stay, drops

    def _location(self, row: int) -> str:
        """Describe a row of the rows in hand, for display."""
        number = f"row {self.file_row + row}"
        begin = self.span[0] if self.span and self.rows_before is None else 0
        return f"{number} from byte {begin} on" if begin else number

    def _count(self, texts: pa.LargeStringArray) -> None:
        offsets = text_buffers(texts)[1]
        self._left -= int(offsets[-1] - offsets[0])
        if self._left < 0:
            raise SourceError(
                f"{self.file.name}: its texts take more than {_LARGEST_GROWTH} times the bytes of "
                f"the file, by {self._location(0)} already: it is made to fill a disk. Leave it "
                "out."
            )


def join(columns: Sequence[pa.LargeStringArray], separator: str) -> pa.LargeStringArray:
    """Join the texts of several columns; null and empty texts are left out.

    A row is null if all its columns are null.
    """
    first, *others = columns
    if not others:
        return first
    nothing = pa.scalar(None, pa.large_string())
    between = pa.scalar(separator, pa.large_string())
    joined = pa.nulls(len(first), pa.large_string())
    for column in columns:
        text = pc.if_else(pc.equal(column, ""), nothing, column)
        both = pc.binary_join_element_wise(joined, text, between)  # null if either is null
        joined = pc.coalesce(both, joined, text)
    return pc.coalesce(joined, *columns)  # empty if only empty texts are left


def _without(texts: pa.LargeStringArray, rows: Sequence[int]) -> pa.LargeStringArray:
    """Set the texts in some rows to null."""
    left_out = np.zeros(len(texts), bool)
    left_out[rows] = True
    # Taken by index, because rows that are left out may not hold text at all.
    return texts.take(pa.array(np.arange(len(texts)), mask=left_out))


def _no_utf8(texts: pa.LargeStringArray) -> Iterator[tuple[int, int]]:
    """Yield rows whose text is not UTF-8, and the byte of the text at which the fault begins."""
    data, offsets = text_buffers(texts)
    for row in np.flatnonzero(np.asarray(texts.is_valid())):
        try:
            bytes(data[offsets[row] : offsets[row + 1]]).decode()
        except UnicodeDecodeError as error:
            yield int(row), error.start
