"""The documents of a part: those of its pieces, one after another."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.dataset.record import BadDocument
from streaming_ext.text.documents.kept_values import joined
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    MAX_BATCH_ROWS,
    DocumentBatch,
    Span,
)
from streaming_ext.text.filters.filters import FilterName
from streaming_ext.text.formats import format_of


@dataclass(frozen=True, slots=True)
class PieceHere:
    """A piece of a source file whose bytes lie on this machine.

    Attributes:
        url: what messages call the file.
        path: where its bytes lie, at least those that the piece needs.
        span: see `Piece`.
        size: of the piece, in bytes.
    """

    url: str
    path: Path
    span: Span | None
    size: int


class PartDocuments:
    """All documents of a part; rows are counted over its pieces, from 0.

    Attributes:
        rows: of each piece that is read to its end.
    """

    def __init__(
        self,
        pieces: Sequence[PieceHere],
        options: ReadOptions,
        *,
        begin: Callable[[PieceHere], None] = lambda piece: None,
        end: Callable[[PieceHere], None] = lambda piece: None,
    ) -> None:
        """Name what is to be read.

        Args:
            pieces: in order.
            options: which text to read.
            begin, end: called before and behind each piece.
        """
        self.rows: list[int] = []
        self._pieces = pieces
        self._options = options
        self._begin, self._end = begin, end

    @property
    def num_pieces(self) -> int:
        """How many pieces the part has."""
        return len(self._pieces)

    def place(self, row: int) -> tuple[str, str]:
        """A row of the part, for people: its file, and which row of what is read of it."""
        piece, own = self._piece_of(row)
        origin = "" if piece.span is None else f" from byte {piece.span[0]} on"
        return piece.url, f"row {own}{origin}"

    def pieces_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The number of the piece that each row of the last batch is of, (rows,)."""
        starts = np.cumsum([0, *self.rows])
        found = np.searchsorted(starts, rows, side="right") - 1
        return np.minimum(found, len(self._pieces) - 1)

    def bad_of(self, batch: DocumentBatch) -> list[BadDocument]:
        """What could not be read of a batch, with the file of each and the row in its piece."""
        found = []
        for one in batch.bad:
            piece, own = self._piece_of(one.row)
            found.append(BadDocument(file=piece.url, row=own, place=one.place, reason=one.reason))
        return found

    def _piece_of(self, row: int) -> tuple[PieceHere, int]:
        starts = [0, *accumulate(self.rows)]
        number = min(bisect_right(starts, row) - 1, len(self._pieces) - 1)
        return self._pieces[number], row - starts[number]

    def batches(self) -> Iterator[DocumentBatch]:
        """The documents in order; small files share a batch.

        Raises:
            SourceError: a file is damaged; names it.
        """
        if len(self._pieces) == 1:
            yield from self._read(self._pieces[0], 0)
            return
        total = max(1, sum(piece.size for piece in self._pieces))
        done = row = 0
        waiting: list[DocumentBatch] = []
        texts = rows = 0  # bytes and rows that wait
        for piece in self._pieces:
            for batch in self._read(piece, row):
                waiting.append(batch)
                texts += batch.texts.nbytes
                rows += batch.num_rows
                if texts >= BATCH_BYTES or rows >= MAX_BATCH_ROWS:
                    yield self._joined(waiting, (done + batch.fraction * piece.size) / total)
                    waiting, texts, rows = [], 0, 0
                del batch
            row += self.rows[-1]
            done += piece.size
        if waiting:
            yield self._joined(waiting, 1.0)

    def _joined(self, batches: Sequence[DocumentBatch], fraction: float) -> DocumentBatch:
        """Consecutive batches as one."""
        dropped: Counter[FilterName] = Counter()
        for batch in batches:
            dropped.update(batch.dropped)
        return DocumentBatch(
            np.concatenate([batch.rows for batch in batches]),
            pa.concat_arrays([batch.texts for batch in batches]),
            sum(batch.num_rows for batch in batches),
            min(1.0, fraction),
            tuple(one for batch in batches for one in batch.bad),
            dropped,
            np.concatenate([batch.named_by for batch in batches]),
            tuple(
                joined(name, columns)
                for name, columns in zip(
                    self._options.kept,
                    zip(*(batch.values for batch in batches), strict=True),
                    strict=True,
                )
            ),
        )

    def _read(self, piece: PieceHere, first_row: int) -> Iterator[DocumentBatch]:
        self._begin(piece)
        rows = 0
        for batch in format_of(piece.url, self._options).read(
            piece.path, self._options, name=piece.url, span=piece.span
        ):
            rows += batch.num_rows
            yield _moved(batch, first_row) if first_row else batch
            del batch  # before the next is read: one may be large
        self.rows.append(rows)
        self._end(piece)


def _moved(batch: DocumentBatch, rows: int) -> DocumentBatch:
    """The same documents so many rows further on."""
    bad = tuple(replace(one, row=one.row + rows) for one in batch.bad)
    return replace(batch, rows=batch.rows + rows, bad=bad, places=batch.named_by)
