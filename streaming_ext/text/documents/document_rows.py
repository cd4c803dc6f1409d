"""From the texts of consecutive rows to batches of documents: joined, bounded, without nulls.

All formats go through it, so that the same rows give the same documents in each.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.errors import SourceError
from streaming_ext.format.filters import FilterName
from streaming_ext.format.provenance import MAX_VALUE_BYTES
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.kept_values import stored, too_long
from streaming_ext.text.documents.text_array import cut_by_bytes, text_buffers

BATCH_BYTES = 16 * 2**20  # of text; what a batch costs is little beside, and so is its memory
MAX_BATCH_ROWS = 2**16
MAX_TEXT_BYTES = 2**28  # of one document: far above any that people write
_LARGEST_GROWTH = 1000  # text for a byte of file: real text gives 2 to 5, forms and logs 50
_ALWAYS_ALLOWED_BYTES = 2**30

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BadDocument:
    """A row that cannot be read.

    Attributes:
        row: its number in the file.
        place: where that is, for people.
        reason: what is wrong there, one line.
    """

    row: int
    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Some consecutive rows of a source file.

    Attributes:
        rows: row in the file of each text, int64 (num_texts,).
        texts: the texts that are neither null nor bad.
        num_rows: rows read, nulls and bad ones among them.
        fraction: of what is being read that is read with this batch, in [0, 1].
        bad: rows left out since they cannot be read, in order.
        dropped: how many each filter dropped, by its name.
        places: what names each text in its file however that is cut, int64 (num_texts,); None
            where the format cannot be cut, and `rows` are that.
        values: of each column that is kept, in the order of `ReadOptions.kept`: (num_texts,) each.
    """

    rows: npt.NDArray[np.int64]
    texts: pa.LargeStringArray
    num_rows: int
    fraction: float
    bad: tuple[BadDocument, ...] = ()
    dropped: Mapping[FilterName, int] = field(default_factory=dict)
    places: npt.NDArray[np.int64] | None = None
    values: tuple[pa.Array, ...] = ()

    @property
    def named_by(self) -> npt.NDArray[np.int64]:
        """What names each text in its file, (num_texts,)."""
        return self.rows if self.places is None else self.places

    @property
    def nulls(self) -> int:
        """Rows that hold no text."""
        left_out = len(self.bad) + sum(self.dropped.values())
        return self.num_rows - len(self.texts) - left_out


class DocumentRows:
    """Makes batches of the rows of one file, or of a piece of it, as they are read.

    Attributes:
        row: the next one, counted from where reading began.
        rows_before: rows before the piece, where that is known.
    """

    def __init__(
        self,
        options: ReadOptions,
        *,
        where: str,
        size: int,
        batch_bytes: int = BATCH_BYTES,
        begin: int = 0,
    ) -> None:
        """Prepare for a file's first row.

        Args:
            options: which text to read.
            where: what messages call the file.
            size: of the file, in bytes.
            batch_bytes: text a batch, in bytes; a longer document stands alone.
            begin: of the piece of the file, in bytes.
        """
        self.options, self.where, self.batch_bytes = options, where, batch_bytes
        self._begin, self._left = begin, _LARGEST_GROWTH * size + _ALWAYS_ALLOWED_BYTES
        self._fraction = 0.0
        self.row = 0
        self.rows_before: int | None = None

    def batches(
        self,
        columns: Sequence[pa.LargeStringArray],
        fraction: float,
        bad: Sequence[BadDocument] = (),
        compared: Sequence[pa.Array] = (),
        places: npt.NDArray[np.int64] | None = None,
    ) -> Iterator[DocumentBatch]:
        """The documents of the next rows.

        Args:
            columns: texts of each column, null where there is none: (rows,) each.
            fraction: of the file that is read with these rows, in [0, 1].
            bad: those of the rows that could not be read, in order; they are null in all columns.
            compared: `ReadOptions.compared` of each row, in that order: (rows,) each.
            places: what names each row in the file however that is cut; its row unless given.

        Raises:
            SourceError: a document is bad and is not to be left out; or the file is made to fill
                memory or disk.
        """
        first, before = self.row, self._fraction
        by_row = {one.row - first: one for one in bad}
        by_name = dict(zip(self.options.compared, compared, strict=True))
        condition = self.options.filters.condition
        true = None
        if condition is not None:
            true = np.asarray(condition.apply(by_name.__getitem__).fill_null(False))
        columns = self._text_of(columns, by_row)
        values = self._kept(by_name, by_row)
        texts = join(columns, self.options.separator)
        sizes = np.diff(text_buffers(texts)[1])
        for row in np.flatnonzero(sizes > MAX_TEXT_BYTES).tolist():
            reason = f"a text of {sizes[row]} bytes, at most {MAX_TEXT_BYTES} are read"
            self._note(by_row, row, reason)
        if len(by_row) > len(bad):
            texts = _without(texts, [*by_row])
        bad_rows = sorted(by_row)
        self._count(texts)
        for start, end in cut_by_bytes(texts, self.batch_bytes):
            piece = texts.slice(start, end - start)
            rows = np.arange(first + start, first + end, dtype=np.int64)
            own_places = rows + (self.rows_before or 0) if places is None else places[start:end]
            own_values = [column.slice(start, end - start) for column in values]
            own_bad = bad_rows[bisect_left(bad_rows, start) : bisect_left(bad_rows, end)]
            stay, dropped = self._filtered(
                piece, None if true is None else true[start:end], [row - start for row in own_bad]
            )
            if stay is not None:
                rows, own_places, chosen = rows[stay], own_places[stay], pa.array(stay)
                piece = piece.filter(chosen)
                own_values = [column.filter(chosen) for column in own_values]
            done = before + (fraction - before) * end / len(texts)
            yield DocumentBatch(
                rows,
                piece,
                end - start,
                fraction if end == len(texts) else done,
                tuple(by_row[row] for row in own_bad),
                dropped,
                own_places,
                tuple(own_values),
            )
        self.row, self._fraction = first + len(texts), fraction

    def passed_over(self, count: int, fraction: float) -> DocumentBatch:
        """The next rows, of which it is known beforehand that the condition drops them all."""
        rows, texts = np.empty(0, np.int64), pa.array([], pa.large_string())
        self.row, self._fraction = self.row + count, fraction
        nothing = tuple(pa.nulls(0) for _ in self.options.kept)
        return DocumentBatch(rows, texts, count, fraction, (), {"where": count}, values=nothing)

    def refuse(self, bad: BadDocument) -> None:
        """Make an error of a bad document, unless such are to be left out.

        Raises:
            SourceError: naming its place.
        """
        if self.options.on_bad_document == "fail":
            raise SourceError(
                f"{self.where}: {bad.place}: {bad.reason}. Mend it, leave the file out, or pass "
                "--on-bad-document skip."
            )

    def _note(self, by_row: dict[int, BadDocument], row: int, reason: str) -> None:
        """Add a bad one of the rows in hand; one that was found before stays."""
        bad = BadDocument(self.row + row, self._place(row), reason)
        self.refuse(by_row.setdefault(row, bad))

    def _text_of(
        self, columns: Sequence[pa.LargeStringArray], by_row: dict[int, BadDocument]
    ) -> Sequence[pa.LargeStringArray]:
        """The columns with null where a text is no UTF-8, of which Arrow makes nothing."""
        for bad in by_row.values():
            self.refuse(bad)
        try:
            for column in columns:
                column.validate(full=True)
        except pa.ArrowInvalid:
            found = [(row, byte) for column in columns for row, byte in _no_utf8(column)]
            if not found:
                raise  # the array itself is damaged
            for row, byte in found:
                self._note(by_row, row, f"no valid UTF-8 at byte {byte} of its text")
            return [_without(column, [row for row, _ in found]) for column in columns]
        return columns

    def _kept(
        self, by_name: Mapping[str, pa.Array], by_row: dict[int, BadDocument]
    ) -> list[pa.Array]:
        """The columns that are kept.

        Raises:
            SourceError: a text is no UTF-8.
        """
        values: list[pa.Array] = []
        for name in self.options.kept:
            try:
                by_name[name].validate(full=True)
            except pa.ArrowInvalid as error:
                raise SourceError(
                    f"{self.where}: column {name!r} holds no valid UTF-8 from {self._place(0)} on. "
                    "Leave it out of --keep-columns, or mend the file."
                ) from error
            values.append(stored(by_name[name]))
            reason = f"{name!r} is longer than the {MAX_VALUE_BYTES} bytes that are kept of it"
            for row in too_long(values[-1]):
                self._note(by_row, row, reason)
        return values

    def _filtered(
        self, texts: pa.LargeStringArray, true: Flags | None, bad: Sequence[int]
    ) -> tuple[Flags | None, dict[FilterName, int]]:
        """Which rows stay, None where all do, and what each filter dropped.

        Args:
            texts: of the rows: (rows,).
            true: where the condition is.
            bad: rows that are left out already.
        """
        dropped: dict[FilterName, int] = {}
        valid = np.asarray(texts.is_valid()) if texts.null_count else None
        drops = self.options.filters.by_text(texts)
        if true is None and not drops:
            return valid, dropped
        stay = np.ones(len(texts), bool)
        stay[list(bad)] = False
        if true is not None:
            dropped["where"] = int((stay & ~true).sum())
            stay &= true
        if valid is not None:
            stay &= valid
        for name, own in drops.items():
            dropped[name] = int((stay & own).sum())
            stay &= ~own
        return stay, dropped

    def _place(self, row: int) -> str:
        """A row of those in hand, for people."""
        number = f"row {(self.rows_before or 0) + self.row + row}"
        known = not self._begin or self.rows_before is not None
        return number if known else f"{number} from byte {self._begin} on"

    def _count(self, texts: pa.LargeStringArray) -> None:
        offsets = text_buffers(texts)[1]
        self._left -= int(offsets[-1] - offsets[0])
        if self._left < 0:
            raise SourceError(
                f"{self.where}: its texts take more than {_LARGEST_GROWTH} times the bytes of the "
                f"file, by {self._place(0)} already: it is made to fill a disk. Leave it out."
            )


def join(columns: Sequence[pa.LargeStringArray], separator: str) -> pa.LargeStringArray:
    """The texts of several columns as one; those that are null or empty are left out of it.

    A row is null where all its columns are.
    """
    first, *others = columns
    if not others:
        return first
    nothing = pa.scalar(None, pa.large_string())
    between = pa.scalar(separator, pa.large_string())
    joined = pa.nulls(len(first), pa.large_string())
    for column in columns:
        text = pc.if_else(pc.equal(column, ""), nothing, column)
        joined = pc.coalesce(
            pc.binary_join_element_wise(joined, text, between), joined, text
        )  # null where one of them is
    return pc.coalesce(joined, *columns)  # empty where all that are there are


def _without(texts: pa.LargeStringArray, rows: Sequence[int]) -> pa.LargeStringArray:
    """The texts with null in some rows."""
    left_out = np.zeros(len(texts), bool)
    left_out[rows] = True
    # taken by index, since what is left out may be no text at all
    return texts.take(pa.array(np.arange(len(texts)), mask=left_out))


def _no_utf8(texts: pa.LargeStringArray) -> Iterator[tuple[int, int]]:
    """Rows whose text is no UTF-8, and the byte of the text where that begins."""
    data, offsets = text_buffers(texts)
    for row in np.flatnonzero(np.asarray(texts.is_valid())):
        try:
            bytes(data[offsets[row] : offsets[row + 1]]).decode()
        except UnicodeDecodeError as error:
            yield int(row), error.start


def with_left_out(
    batch: pa.RecordBatch, schema: pa.Schema, bad: list[BadDocument], first: int
) -> tuple[pa.RecordBatch, list[BadDocument]]:
    """Rows with those that a parser left out, and texts as what the schema asks for.

    Args:
        batch: rows of texts.
        schema: of a type for each column.
        bad: the rows that were left out, among these.
        first: number of the first row.

    Returns:
        The rows, empty where one is bad; and these, with those that hold another type.
    """
    good = np.ones(len(batch) + len(bad), bool)
    good[[one.row - first for one in bad]] = False
    index, numbers = np.cumsum(good) - 1, np.flatnonzero(good) + first
    kinds = dict(zip(schema.names, schema.types, strict=True))
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns.append(column.cast(kinds[name]))
        except pa.ArrowInvalid:
            cells = [_cast(cell, kinds[name]) for cell in column]
            for number, cell, found in zip(numbers.tolist(), column, cells, strict=True):
                if cell.is_valid and not found.is_valid:
                    reason = f"{name!r} is no {kinds[name]}, which --where asks for"
                    bad.append(BadDocument(number, f"row {number}", reason))
            columns.append(pa.array(cells, kinds[name]))
    good[[one.row - first for one in bad]] = False
    found = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    chosen = pa.array(index, mask=~good)
    return found.take(chosen), sorted(bad, key=lambda one: one.row)


def _cast(cell: pa.Scalar, kind: pa.DataType) -> pa.Scalar:
    try:
        return cell.cast(kind)
    except pa.ArrowInvalid:
        return pa.scalar(None, kind)
