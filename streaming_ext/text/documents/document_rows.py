"""From the texts of consecutive rows to batches of documents: joined, bounded, without nulls.

All formats go through it, so that the same rows give the same documents in each.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.kept_values import MAX_VALUE_BYTES, stored, too_long
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    MAX_TEXT_BYTES,
    BadDocument,
    DocumentBatch,
)
from streaming_ext.text.documents.text_array import cut_by_bytes, text_buffers
from streaming_ext.text.filters.filters import FilterName

Flags = npt.NDArray[np.bool_]
_LARGEST_GROWTH = 1000  # text for a byte of file: real text gives 2 to 5, forms and logs 50
_ALWAYS_ALLOWED_BYTES = 2**30


class DocumentRows:
    """Makes batches of the rows of one file, or of a piece of it, as they are read."""

    def __init__(
        self,
        options: ReadOptions,
        *,
        where: str,
        size: int,
        batch_bytes: int = BATCH_BYTES,
        begin: int = 0,
        rows_before: int = 0,
    ) -> None:
        """Prepare for a file's first row.

        Args:
            options: which text to read.
            where: what messages call the file.
            size: of the file, in bytes.
            batch_bytes: text a batch, in bytes; a longer document stands alone.
            begin: of the piece of the file, in bytes, where its rows are numbered from 0.
            rows_before: rows before the piece, where that is known.
        """
        self.options, self.where, self.batch_bytes = options, where, batch_bytes
        self._begin, self._before = begin, rows_before
        self._left = _LARGEST_GROWTH * size + _ALWAYS_ALLOWED_BYTES
        self._fraction = 0.0
        self.row = 0

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
        if bad:
            self.refuse(bad[0])
        true = self._where(compared)
        columns, more = self._checked(columns)
        values, unfit = self._kept(compared)
        more = more + unfit
        texts = join(columns, self.options.separator)
        first, before = self.row, self._fraction
        bad = sorted(
            {one.row: one for one in (*bad, *more, *self._too_long(texts))}.values(),
            key=lambda one: one.row,
        )
        if more or len(bad) > len(more):
            texts = _without(texts, [one.row - self.row for one in bad])
        bad_rows = [one.row - first for one in bad]
        self._count(texts)
        for start, end in cut_by_bytes(texts, self.batch_bytes):
            piece = texts.slice(start, end - start)
            rows = np.arange(first + start, first + end, dtype=np.int64)
            own_places = rows + self._before if places is None else places[start:end]
            own_bad = bad[bisect_left(bad_rows, start) : bisect_left(bad_rows, end)]
            stay, dropped = self._filtered(
                piece,
                None if true is None else true[start:end],
                [one.row - first - start for one in own_bad],
            )
            if stay is not None:
                rows, own_places = rows[stay], own_places[stay]
                piece = piece.filter(pa.array(stay))
            own_values = [column.slice(start, end - start) for column in values]
            if stay is not None:
                own_values = [column.filter(pa.array(stay)) for column in own_values]
            share = before + (fraction - before) * end / len(texts)
            yield DocumentBatch(
                rows,
                piece,
                end - start,
                fraction if end == len(texts) else share,
                tuple(own_bad),
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

    def _kept(self, compared: Sequence[pa.Array]) -> tuple[list[pa.Array], list[BadDocument]]:
        """The columns that are kept, and rows where one holds what is too long to be kept.

        Raises:
            SourceError: a text is no UTF-8, or there is such a row and it is not to be left out.
        """
        by_name = dict(zip(self.options.compared, compared, strict=True))
        values: list[pa.Array] = []
        bad: dict[int, BadDocument] = {}
        for name in self.options.kept:
            try:
                by_name[name].validate(full=True)
            except pa.ArrowInvalid as error:
                raise SourceError(
                    f"{self.where}: column {name!r} holds no valid UTF-8 from {self._place(0)} on. "
                    "Leave it out of --keep-columns, or mend the file."
                ) from error
            column = stored(by_name[name])
            values.append(column)
            for row in too_long(column):
                reason = f"{name!r} is longer than the {MAX_VALUE_BYTES} bytes that are kept of it"
                bad.setdefault(row, BadDocument(self.row + row, self._place(row), reason))
        found = sorted(bad.values(), key=lambda one: one.row)
        if found:
            self.refuse(found[0])
        return values, found

    def _where(self, compared: Sequence[pa.Array]) -> Flags | None:
        """Where the condition is true; None where there is none."""
        condition = self.options.filters.condition
        if condition is None:
            return None
        by_name = dict(zip(self.options.compared, compared, strict=True))
        return np.asarray(condition.apply(by_name.__getitem__).fill_null(False))

    def _filtered(
        self, texts: pa.LargeStringArray, true: Flags | None, bad: Sequence[int]
    ) -> tuple[Flags | None, dict[FilterName, int]]:
        """Which rows stay, None where all do, and what each filter dropped.

        Args:
            texts: of the rows: (rows,).
            true: where the condition is.
            bad: rows that are left out already.
        """
        filters = self.options.filters
        dropped: dict[FilterName, int] = {}
        valid = np.asarray(texts.is_valid()) if texts.null_count else None
        short = filters.by_text(texts)
        if true is None and not short:
            return valid, dropped
        stay = np.ones(len(texts), bool)
        stay[list(bad)] = False
        if true is not None:
            dropped["where"] = int((stay & ~true).sum())
            stay &= true
        if valid is not None:
            stay &= valid
        for name, drops in short.items():
            dropped[name] = int((stay & drops).sum())
            stay &= ~drops
        return stay, dropped

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

    def _checked(
        self, columns: Sequence[pa.LargeStringArray]
    ) -> tuple[Sequence[pa.LargeStringArray], list[BadDocument]]:
        """The columns with null where a text is no UTF-8, and those rows."""
        try:
            for column in columns:
                column.validate(full=True)  # Arrow does not look at it when it reads a file
        except pa.ArrowInvalid:
            bad: dict[int, BadDocument] = {}
            for column in columns:
                for row, byte in _no_utf8(column):
                    place = self._place(row)
                    reason = f"no valid UTF-8 at byte {byte} of its text"
                    bad.setdefault(row, BadDocument(self.row + row, place, reason))
            if not bad:
                raise  # the array itself is damaged
            self.refuse(next(iter(bad.values())))
            return [_without(column, list(bad)) for column in columns], list(bad.values())
        return columns, []

    def _too_long(self, texts: pa.LargeStringArray) -> list[BadDocument]:
        sizes = np.diff(text_buffers(texts)[1])
        if sizes.max(initial=0) <= MAX_TEXT_BYTES:
            return []
        bad = [
            BadDocument(
                self.row + int(row),
                self._place(int(row)),
                f"a text of {sizes[row]} bytes, at most {MAX_TEXT_BYTES} are read",
            )
            for row in np.flatnonzero(sizes > MAX_TEXT_BYTES)
        ]
        self.refuse(bad[0])
        return bad

    def _place(self, row: int) -> str:
        """A row of those in hand, for people."""
        number = f"row {self._before + self.row + row}"
        return f"{number} from byte {self._begin} on" if self._begin else number

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
    keep = np.ones(len(texts), bool)
    keep[rows] = False
    # taken by index, since what is left out may be no text at all
    indices = pa.array(np.arange(len(texts)), mask=~keep)
    return texts.take(indices)


def _no_utf8(texts: pa.LargeStringArray) -> Iterator[tuple[int, int]]:
    """Rows whose text is no UTF-8, and the byte of the text where that begins."""
    data, offsets = text_buffers(texts)
    for row in np.flatnonzero(np.asarray(texts.is_valid())):
        try:
            bytes(data[offsets[row] : offsets[row + 1]]).decode()
        except UnicodeDecodeError as error:
            yield int(row), error.start
