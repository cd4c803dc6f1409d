"""Where a document stands in its source file: from its row in a part to its row in the file.

Rows of a part are counted over its pieces. Where a file was cut, the parts before hold the rows
before, so the row in the file is known where they are in the same dataset:

    a file of 7 rows in parts 3 and 4, which hold 5 and 2: row 1 of part 4 is row 6 of the file
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.record import PartRecord, PartSummary
from streaming_ext.dataset.shuffled.source_table import Source


@dataclass(frozen=True, slots=True)
class Place:
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


class PlacesOfPart:
    """The places of a part's documents."""

    def __init__(self, record: PartRecord, manifest: Manifest | None = None) -> None:
        """Look up what lies before.

        Args:
            record: of the part.
            manifest: of its dataset; without it, rows of a piece are counted from the piece on.
        """
        self._pieces = record.made_of
        self._starts = [0, *accumulate(piece.rows for piece in self._pieces)]
        span = self._pieces[0].span
        self._from_byte = 0 if span is None else span[0]
        self._before = 0
        if self._from_byte and manifest is not None:
            before = rows_before(manifest.parts, record.part)
            if before is not None:
                self._from_byte, self._before = 0, before

    def files(self) -> list[tuple[str, int]]:
        """URL and `from_byte` of each piece."""
        return [(piece.source.url, self._from_byte) for piece in self._pieces]

    def among(self, rows: Ints, sources: Ints, wanted: Mapping[tuple[str, int], Ints]) -> Flags:
        """Which rows of the part are among some documents: (rows,).

        Args:
            rows: of the part: (rows,).
            sources: numbers of their sources, for shuffled ones: (rows,).
            wanted: rows of each source file, sorted, by its URL and `from_byte`.
        """
        number = (
            np.minimum(np.searchsorted(self._starts, rows, side="right"), len(self._pieces)) - 1
        )
        found = np.zeros(len(rows), bool)
        for piece, told in enumerate(self._pieces):
            theirs = wanted.get((told.source.url, self._from_byte))
            if theirs is not None:
                here = np.flatnonzero(number == piece)
                found[here] = np.isin(rows[here] - self._starts[piece] + self._before, theirs)
        return found

    def of(self, row: int, source: int = 0) -> Place:
        """The place of a row of the part; the number of a source is for shuffled ones."""
        number = min(bisect_right(self._starts, row), len(self._pieces)) - 1
        return Place(
            self._pieces[number].source.url,
            row - self._starts[number] + self._before,
            self._from_byte,
        )

    def numbered(self, rows: Ints, sources: Ints) -> tuple[Ints, Ints]:
        """Of rows of the part, their numbers in `files` and rows in these files: (rows,) each."""
        starts = np.array(self._starts)
        number = np.searchsorted(starts, rows, side="right") - 1
        number = np.minimum(number, len(self._pieces) - 1)
        return number, rows - starts[number] + self._before


class PlacesOfSources:
    """The places of the documents of a shuffled dataset, which name their sources by number."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def files(self) -> list[tuple[str, int]]:
        """URL and `from_byte` of each source."""
        return [
            (source.identity.url, 0 if source.span is None else source.span[0])
            for source in self._sources
        ]

    def among(self, rows: Ints, sources: Ints, wanted: Mapping[tuple[str, int], Ints]) -> Flags:
        """Which rows are among some documents: (rows,); see `PlacesOfPart.among`."""
        found = np.zeros(len(rows), bool)
        for number in np.unique(sources).tolist():
            place = self.of(0, number)
            theirs = wanted.get((place.source, place.from_byte))
            if theirs is not None:
                here = np.flatnonzero(sources == number)
                found[here] = np.isin(rows[here], theirs)
        return found

    def numbered(self, rows: Ints, sources: Ints) -> tuple[Ints, Ints]:
        """Numbers in `files` and rows in these files; see `PlacesOfPart.numbered`."""
        return sources, rows

    def of(self, row: int, source: int) -> Place:
        """The place of a row of a source."""
        found = self._sources[source]
        return Place(found.identity.url, row, 0 if found.span is None else found.span[0])


def rows_before(parts: Sequence[PartSummary], part: int) -> int | None:
    """Rows of the file that stand before a part that is a piece of it; None where it is not known.

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
