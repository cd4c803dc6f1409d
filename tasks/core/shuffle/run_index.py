"""The index of all runs: where the documents of a range of keys lie, and which row each is."""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.shuffled.keys import KEY_BITS, Ints
from streaming_ext.errors import CorruptDatasetError
from tasks.core.shuffle.run_record import Run, RunRecord, heard

_ROW_BITS = 40  # of a part's rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Blocks of a run that hold all documents of a range of keys.

    Attributes:
        part, run: whose they are.
        offsets: byte that each begins with, then the end: (blocks + 1,).
        counts: documents of each, (blocks,).
        digests: of each, (blocks,).
    """

    part: int
    run: int
    offsets: Ints
    counts: Ints
    digests: npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class RunIndex:
    """All runs, in the order of the sources.

    Attributes:
        parts, numbers: of each run: part and number there, (runs,).
        firsts: first block of each run, then their number: (runs + 1,).
        counts, digests: of each block, (blocks,).
        offsets: byte of its run that each block begins with; one more a run: (blocks + runs,).
        piece_firsts: first piece of each part, then their number: (parts + 1,).
        piece_rows: row of its part that each piece begins with, (pieces,).
        piece_sources: number of the source of each, (pieces,).
        piece_before: rows of the source that stand before each, (pieces,).
    """

    parts: Ints
    numbers: Ints
    firsts: Ints
    counts: Ints
    digests: npt.NDArray[np.uint64]
    offsets: Ints
    piece_firsts: Ints
    piece_rows: Ints
    piece_sources: Ints
    piece_before: Ints

    @classmethod
    def of(
        cls,
        records: Sequence[RunRecord],
        sources: Sequence[int],
        before: Sequence[int],
        *,
        first_part: int = 0,
        runs_of: Callable[[RunRecord], Sequence[Run]] = lambda record: record.runs,
    ) -> Self:
        """The index of all parts.

        Args:
            records: by part, from the first one on.
            sources: number of the source of each piece of all parts.
            before: rows of the source before each.
            first_part: its number.
            runs_of: which runs of a part.
        """
        rows = [
            np.cumsum([0, *(piece.rows for piece in record.made_of)])[:-1] for record in records
        ]
        return cls.of_runs(
            [(record.part, runs_of(record)) for record in records],
            piece_firsts=np.cumsum([0] * (first_part + 1) + [len(own) for own in rows]),
            piece_rows=_joined(rows, "<i8"),
            piece_sources=np.array(sources, np.int64),
            piece_before=np.array(before, np.int64),
        )

    @classmethod
    def of_runs(cls, runs_of_parts: Sequence[tuple[int, Sequence[Run]]], **pieces: Ints) -> Self:
        """The index of the runs of some parts, by part.

        Args:
            runs_of_parts: in order.
            pieces: the fields that tell of them; none where origins are not asked for.
        """
        none = np.empty(0, np.int64)
        runs = [
            (part, number, run) for part, runs in runs_of_parts for number, run in enumerate(runs)
        ]
        counts = [heard(run.counts, "<i8") for _, _, run in runs]
        of_pieces = ("piece_firsts", "piece_rows", "piece_sources", "piece_before")
        return cls(
            parts=np.array([part for part, _, _ in runs], np.int64),
            numbers=np.array([number for _, number, _ in runs], np.int64),
            firsts=np.cumsum([0, *map(len, counts)]),
            counts=_joined(counts, "<i8"),
            digests=_joined([heard(run.digests, "<u8") for _, _, run in runs], "<u8"),
            offsets=_joined([heard(run.offsets, "<i8") for _, _, run in runs], "<i8"),
            **(dict.fromkeys(of_pieces, none) | pieces),
        )

    def to_bytes(self) -> bytes:
        """As a file."""
        file = io.BytesIO()
        np.savez(file, **vars(self))
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """From such a file.

        Raises:
            CorruptDatasetError: it is none.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return cls(**arrays)
        except (ValueError, TypeError, OSError, KeyError) as error:
            raise CorruptDatasetError(f"no index of runs: {error}") from error

    def ranges(self, start: int, end: int) -> Iterator[Range]:
        """What of each run holds the keys [start, end), in the order of the sources."""
        for run in range(len(self.parts)):
            first, bits = self._first_and_bits(run)
            low, high = start >> (KEY_BITS - bits), ((end - 1) >> (KEY_BITS - bits)) + 1
            begin = first + run + low
            yield Range(
                part=int(self.parts[run]),
                run=int(self.numbers[run]),
                offsets=self.offsets[begin : begin + high - low + 1],
                counts=self.counts[first + low : first + high],
                digests=self.digests[first + low : first + high],
            )

    def _first_and_bits(self, run: int) -> tuple[int, int]:
        first = int(self.firsts[run])
        return first, (int(self.firsts[run + 1]) - first).bit_length() - 1

    def steps(self, start: int, end: int, most: int) -> list[tuple[int, int]]:
        """Ranges of keys, end to end, that hold about so many bytes each, or less.

        Keys are spread evenly, so a piece of a range holds about its share of the bytes.
        """
        size = 0.0
        for run, found in enumerate(self.ranges(start, end)):
            width = len(found.counts) << (KEY_BITS - self._first_and_bits(run)[1])
            size += int(found.offsets[-1] - found.offsets[0]) * ((end - start) / width)
        count = min(max(1, math.ceil(size / most)), end - start)
        edges = [start + (end - start) * step // count for step in range(count + 1)]
        return list(pairwise(edges))

    def origins(self, parts: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Number of the source, and row there, of rows of parts; all arrays: (rows,)."""
        of_piece = np.repeat(np.arange(len(self.piece_firsts) - 1), np.diff(self.piece_firsts))
        starts = (of_piece << _ROW_BITS) + self.piece_rows
        pieces = np.searchsorted(starts, (parts << _ROW_BITS) + rows, side="right") - 1
        before = self.piece_before[pieces] - self.piece_rows[pieces]
        return self.piece_sources[pieces], rows + before


def _joined(arrays: Sequence[npt.NDArray[Any]], dtype: str) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
