"""Rows that are put together from pieces of the token stream: where these lie, and their copying.

Pieces have any length, and numpy copies many runs at once only where all have one. So a piece is
covered by runs of one width, the last of them moved back so that none goes beyond the piece:

    a piece of 1,300 tokens as runs of 512: [0, 512), [512, 1024), [788, 1300)
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from streaming_ext.batches.token_reader import TokenReader, Tokens
from streaming_ext.packing.unit import RowPieces
from streaming_ext.sampler.order import Ints
from streaming_ext.shards.windows import windows

_WIDTHS: Final = (512, 128, 32)  # what is shorter is copied token by token


@dataclass(frozen=True, kw_only=True, slots=True)
class _Runs:
    """Runs of one width, row by row.

    Attributes:
        width: tokens of each.
        firsts: first run of each row, then the number of runs: (rows + 1,).
        addresses: of the first token of each in the arena, in bytes: (runs,).
        places: where it goes, in tokens, the rows laid end to end: (runs,).
    """

    width: int
    firsts: Ints
    addresses: Ints
    places: Ints


class PiecesOfRows:
    """Some rows as what lies of them in one shard each.

    Attributes:
        shards: of each piece: (pieces,).
        rows: of each piece: (pieces,).
        firsts: first piece of each row, then the number of pieces: (rows + 1,).
    """

    def __init__(self, reader: TokenReader, told: RowPieces, *, length: int) -> None:
        """Find the pieces in the shards.

        Args:
            reader: of the shards.
            told: the pieces, whose starts count in the reader's space of tokens.
            length: tokens a row.
        """
        self._reader = reader
        self._length = length
        count = len(told.firsts) - 1
        rows = np.repeat(np.arange(count), np.diff(told.firsts))
        ends = np.cumsum(told.lengths)
        begins = ends - told.lengths  # all pieces laid end to end
        row_begins = np.append(begins, ends[-1:])[told.firsts[:-1]]
        places = begins - row_begins[rows] + rows * length
        starts, lengths = told.starts, told.lengths
        located = reader.locate(starts, lengths)
        if located.last is not located.first:
            number, shards = reader.shards_touched(located)
            edges = reader.shard_starts
            start = np.maximum(starts[number], edges[shards])
            stop = np.minimum(starts[number] + lengths[number], edges[shards + 1])
            rows, places = rows[number], places[number] + start - starts[number]
            starts, lengths = start, stop - start
            located = reader.locate(starts, lengths)
        self.shards, self.rows = located.first, rows
        self.firsts: Ints = np.searchsorted(rows, np.arange(count + 1))
        self._addresses, self._places, self._lengths = located.addresses, places, lengths
        self._small = lengths < _WIDTHS[-1]
        self._runs = [self._runs_of(width, below)
                      for width, below in zip(_WIDTHS, (None, *_WIDTHS), strict=False)]  # fmt: skip

    def copy(self, rows: slice) -> Tokens:
        """The tokens of some rows, any where no piece lies: (rows, length)."""
        count = rows.stop - rows.start
        tokens = np.empty((count, self._length), self._reader.dtype)
        flat, origin = tokens.reshape(-1), rows.start * self._length
        for runs in self._runs:
            some = slice(runs.firsts[rows.start], runs.firsts[rows.stop])
            if some.start < some.stop:
                found = self._reader.runs(runs.addresses[some], runs.width)
                windows(flat, runs.width)[runs.places[some] - origin] = found
        some = slice(self.firsts[rows.start], self.firsts[rows.stop])
        small = np.flatnonzero(self._small[some]) + some.start
        if small.size:
            lengths = self._lengths[small]
            inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            addresses = np.repeat(self._addresses[small], lengths)
            addresses += inside * self._reader.dtype.itemsize
            places = np.repeat(self._places[small] - origin, lengths) + inside
            windows(flat, 1)[places] = self._reader.runs(addresses, 1)
        return tokens

    def _runs_of(self, width: int, below: int | None) -> _Runs:
        """The runs that cover all pieces of at least `width` tokens, and fewer than `below`."""
        chosen = self._lengths >= width
        if below is not None:
            chosen &= self._lengths < below
        counts = np.where(chosen, -(-self._lengths // width), 0)
        behind = np.concatenate([[0], np.cumsum(counts)])
        piece = np.repeat(np.arange(len(counts)), counts)
        inside = (np.arange(len(piece)) - behind[piece]) * width
        inside = np.minimum(inside, self._lengths[piece] - width)
        return _Runs(
            width=width,
            firsts=behind[self.firsts],
            addresses=self._addresses[piece] + inside * self._reader.dtype.itemsize,
            places=self._places[piece] + inside,
        )
