"""Rows that are put together from pieces of the token stream: where these lie, and their copying.

Numpy copies many runs at once only where all have one length, and pieces have any. So a row is read
in granules of 64 tokens, each from where its first token lies; what a granule holds behind the end
of a piece is wrong, and is put right by what is copied after it:

    a row of 192 tokens, pieces of 100 and 92 tokens
    granules [0, 64) and [64, 128) from the first piece, right as far as 100; [128, 192) from
    the second; then the first 64 tokens of the second piece to [100, 164)

Pieces of less than a granule are copied token by token, and so is what a granule at the end of
a shard cannot be read at once for.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from streaming_ext.base.arrays import Ints, Tokens, windows
from streaming_ext.batches.token_reader import TokenReader
from streaming_ext.packing.unit import RowPieces

_GRANULE: Final = 64  # tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class _Copies:
    """What is copied over granules, row by row.

    Attributes:
        firsts: first of each row, then their number: (rows + 1,).
        addresses: of the first token of each in the arena, in bytes: (copies,).
        places: where it goes, in tokens, the granules of all rows end to end: (copies,).
        lengths: tokens of each: (copies,).
    """

    firsts: Ints
    addresses: Ints
    places: Ints
    lengths: Ints

    def of_rows(self, rows: slice) -> slice:
        return slice(self.firsts[rows.start], self.firsts[rows.stop])


class PiecesOfRows:
    """Some rows as what lies of them in one shard each.

    Attributes:
        shards: of each piece: (pieces,).
        rows: of each piece: (pieces,).
        firsts: first piece of each row, then the number of pieces: (rows + 1,).
    """

    def __init__(self, reader: TokenReader, told: RowPieces, *, length: int, rooms: Ints) -> None:
        """Find the pieces in the shards.

        Args:
            reader: of the shards.
            told: the pieces, whose starts count in the reader's space of tokens; one a row at
                least.
            length: tokens a row.
            rooms: tokens that each piece takes in its row: (pieces,).
        """
        self._reader = reader
        self._length = length
        self._granules_a_row = -(-length // _GRANULE)
        count = len(told.firsts) - 1
        rows = np.repeat(np.arange(count), np.diff(told.firsts))
        ends = np.cumsum(rooms)
        begins = ends - rooms  # all pieces laid end to end
        row_begins = np.append(begins, ends[-1:])[told.firsts[:-1]]
        places = begins - row_begins[rows] + rows * (self._granules_a_row * _GRANULE)
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
        self._find_copies(count)

    def _find_copies(self, count: int) -> None:
        """Lay out the granules of all rows, and what is copied over them."""
        size = self._reader.dtype.itemsize
        granules = count * self._granules_a_row
        # Those that begin in each piece, or in the padding behind it: (pieces,)
        counts = np.diff(-(-self._places // _GRANULE), append=granules)
        wanted = np.repeat(self._addresses - self._places * size, counts)
        wanted += np.arange(0, granules * _GRANULE * size, _GRANULE * size)
        last = np.repeat(self._reader.last_run(self.shards, _GRANULE), counts)
        self._granules = np.minimum(wanted, last)
        # Granules that were moved back, so far as their piece goes.
        moved = np.flatnonzero(self._granules < wanted)
        piece = np.searchsorted(self._places, moved * _GRANULE, side="right") - 1
        inside = moved * _GRANULE - self._places[piece]
        unread = np.flatnonzero(inside < self._lengths[piece])
        short = np.flatnonzero(self._lengths < _GRANULE)
        self._singles = self._copies(
            np.concatenate([piece[unread], short]),
            np.concatenate([inside[unread], np.zeros_like(short)]),
        )
        heads = np.flatnonzero((self._lengths >= _GRANULE) & (self._places % _GRANULE != 0))
        self._heads = self._copies(heads, np.zeros_like(heads))

    def _copies(self, pieces: Ints, inside: Ints) -> _Copies:
        """Copies of pieces from `inside` of each on."""
        order = np.argsort(pieces, kind="stable")
        pieces, inside = pieces[order], inside[order]
        return _Copies(
            firsts=np.searchsorted(pieces, self.firsts),
            addresses=self._addresses[pieces] + inside * self._reader.dtype.itemsize,
            places=self._places[pieces] + inside,
            lengths=self._lengths[pieces] - inside,
        )

    def copy(self, rows: slice) -> Tokens:
        """The tokens of some rows, any where no piece lies: (rows, length)."""
        reader, first = self._reader, rows.start * self._granules_a_row
        granules = self._granules[first : rows.stop * self._granules_a_row]
        tokens: Tokens = reader.runs(granules, _GRANULE).view(reader.dtype)
        origin = first * _GRANULE
        some = self._heads.of_rows(rows)
        if some.start < some.stop:
            found = reader.runs(self._heads.addresses[some], _GRANULE)
            windows(tokens, _GRANULE)[self._heads.places[some] - origin] = found
        some = self._singles.of_rows(rows)
        if some.start < some.stop:
            lengths = self._singles.lengths[some]
            inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            addresses = np.repeat(self._singles.addresses[some], lengths)
            addresses += inside * reader.dtype.itemsize
            places = np.repeat(self._singles.places[some] - origin, lengths) + inside
            windows(tokens, 1)[places] = reader.runs(addresses, 1)
        tokens = tokens.reshape(rows.stop - rows.start, -1)
        return np.ascontiguousarray(tokens[:, : self._length])
