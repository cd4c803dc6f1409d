"""Rows of whole documents out of memory-mapped shards, as a source of batches.

Where documents begin and end is known from the packing plan: no shard is searched for it, and masks
cost next to nothing.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from streaming_ext.base.arrays import Flags, Ints, Tokens
from streaming_ext.batches.masks import IGNORED, Boundaries
from streaming_ext.batches.shard_source import ShardSource
from streaming_ext.batches.token_reader import TokenReader
from streaming_ext.batches.token_source import Spans
from streaming_ext.packing.pieces_of_rows import PiecesOfRows
from streaming_ext.packing.plan import PackingPlan
from streaming_ext.packing.unit import RowPieces, rounded_up


class PackedSource(ShardSource):
    """The packed rows of one or more streams; see `TokenSource` for the words."""

    def __init__(
        self,
        reader: TokenReader,
        plans: Sequence[PackingPlan],
        *,
        eot_id: int,
        cache_limit: int | None,
        multiple: int = 1,
    ) -> None:
        """Take over the plans.

        Args:
            reader: of the shards.
            plans: one a stream.
            eot_id: what fills up a row.
            cache_limit: see `ShardSource`.
            multiple: of tokens that each piece takes in its row.
        """
        super().__init__(reader, cache_limit=cache_limit)
        self.multiple = multiple
        self.plans = tuple(plans)
        self._eot = eot_id

    def bounds(self, length: int) -> list[Ints]:
        """The first row of each unit, then their number."""
        return [plan.bounds for plan in self.plans]

    def find_ends(self, eot_id: int) -> None:
        """Nothing is to be found: the plan says it."""

    def locate(self, streams: Ints, sequences: Ints, length: int) -> "PackedRows":
        """Look up the pieces of rows; a row below zero is looked up as row 0."""
        return PackedRows(
            self.reader,
            self._pieces(streams, np.maximum(sequences, 0)),
            length,
            self._eot,
            self.multiple,
        )

    def pieces_of(self, stream: int, sequence: int, length: int) -> list[tuple[int, int]]:
        """Of each document one."""
        told = self.plans[stream].look_up(np.array([sequence]))
        stops = told.starts + told.lengths
        return list(zip(told.starts.tolist(), stops.tolist(), strict=True))

    def sequences_with(self, stream: int, first: int, stop: int, length: int) -> Ints:
        """Out of the plan."""
        return self.plans[stream].rows_with(first, stop)

    def _pieces(self, streams: Ints, rows: Ints) -> RowPieces:
        """The pieces of rows, with starts in the reader's space of tokens."""
        starts = self.reader.stream_starts
        if len(self.plans) == 1:
            return self.plans[0].look_up(rows)
        found, owners = [], []
        for stream in np.unique(streams).tolist():
            chosen = np.flatnonzero(streams == stream)
            told = self.plans[stream].look_up(rows[chosen])
            told.starts[:] += starts[stream]
            found.append(told)
            owners.append(np.repeat(chosen, np.diff(told.firsts)))
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")

        def joined(name: str) -> Ints:
            values: Ints = np.concatenate([getattr(told, name) for told in found])[order]
            return values

        return RowPieces(
            firsts=np.searchsorted(owner[order], np.arange(len(rows) + 1)),
            starts=joined("starts"),
            lengths=joined("lengths"),
            begins=joined("begins").astype(bool),
            ends=joined("ends").astype(bool),
        )


class PackedRows:
    """Rows whose pieces are known; see `TokenRows`."""

    def __init__(
        self, reader: TokenReader, told: RowPieces, length: int, eot_id: int, multiple: int
    ) -> None:
        self._reader = reader
        self._told = told
        self._length = length
        self._eot = eot_id
        self._rooms = rounded_up(told.lengths, multiple)
        self._pieces = PiecesOfRows(reader, told, length=length, rooms=self._rooms)
        ends = np.append(0, np.cumsum(self._rooms))
        # Tokens of each row that its pieces take: (rows,)
        self._filled: Ints = np.diff(ends[told.firsts])
        # Padding stands in gaps behind pieces; the last of each row has the rest of it, too.
        # Which piece each is behind, its size, and where it begins, the rows end to end: (gaps,)
        row = np.flatnonzero(self._filled < length)
        self._gapped: Ints = told.firsts[1:][row] - 1
        self._gap_sizes: Ints = length - self._filled[row]
        self._gap_begins: Ints = row * length + self._filled[row]
        if multiple > 1:
            gaps = self._rooms - told.lengths
            gaps[self._gapped] += self._gap_sizes
            self._gapped = np.flatnonzero(gaps)
            self._gap_sizes = gaps[self._gapped]
            row = np.searchsorted(told.firsts, self._gapped, side="right") - 1
            begins = ends[self._gapped] - ends[told.firsts[row]] + row * length
            self._gap_begins = begins + told.lengths[self._gapped]
        # Each place of padding; of each row those between two firsts.
        behind = np.append(0, np.cumsum(self._gap_sizes))
        self._padding_firsts: Ints = behind[np.searchsorted(row, np.arange(len(told.firsts)))]
        self._padding: Ints = np.repeat(self._gap_begins - behind[:-1], self._gap_sizes)
        self._padding += np.arange(len(self._padding))
        last = told.firsts[1:] - 1
        self._last_lengths = told.lengths[last]
        self._last = reader.locate(told.starts[last], self._last_lengths)
        self._goes_on = ~told.ends[last]

    def ready(self, rows: slice) -> bool:
        """Whether all their shards are open."""
        return bool(self._reader.ready[self._shards(rows)].all())

    def held(self, rows: slice) -> AbstractContextManager[None]:
        """Open their shards and keep them open."""
        return self._reader.held(self._shards(rows))

    def tokens(self, rows: slice) -> Tokens:
        """Copy their pieces out of the shards, and fill up with end-of-text ids."""
        tokens = self._pieces.copy(rows)
        some = slice(self._padding_firsts[rows.start], self._padding_firsts[rows.stop])
        if some.start < some.stop:
            tokens.reshape(-1)[self._padding[some] - rows.start * self._length] = self._eot
        return tokens

    def start_inside(self, rows: slice, eot_id: int) -> Flags:
        """Whether the first piece of each begins within its document."""
        inside: Flags = ~self._told.begins[self._told.firsts[:-1][rows]]
        return inside

    def boundaries(self, rows: slice, *, steps: int, real: Flags, targets: bool) -> Boundaries:
        """As the plan says."""
        length, told = self._length, self._told
        a_step = len(real) // steps
        firsts = told.firsts[rows.start : rows.stop + 1]
        filled = np.where(real, self._filled[rows], 0)
        counts = np.where(real, np.diff(firsts), 0)
        number = np.arange(len(real))
        closes = number % a_step == a_step - 1
        padded = filled < length
        # A row has an edge at each piece and at its padding, a step one more at its end.
        slots = counts + padded + closes
        behind = np.cumsum(slots)
        begin = behind - slots
        origin = number % a_step * length
        edges = np.empty(behind[-1], np.int32)
        owner = np.repeat(number, counts)
        inside = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        piece = firsts[owner] + inside
        before = np.cumsum(self._rooms[piece]) - self._rooms[piece]
        before -= np.repeat(np.cumsum(filled) - filled, counts)  # within its row
        edges[begin[owner] + inside] = origin[owner] + before
        edges[(begin + counts)[padded]] = (origin + filled)[padded]
        edges[behind[closes] - 1] = a_step * length
        edge_steps = np.append(0, behind[closes])
        lengths = np.diff(edges, append=np.int32(0))
        numbers = np.arange(len(edges)) - np.repeat(begin, slots)
        ignored, ignored_steps = self._ignored(rows, real, a_step)
        return Boundaries(
            edges=edges,
            edge_steps=edge_steps,
            lengths=lengths,
            numbers=numbers.astype(np.int32),
            longest=np.maximum.reduceat(lengths, edge_steps[:-1]),
            ignored=ignored,
            ignored_steps=ignored_steps,
            last_targets=self._last_targets(rows) if targets else np.empty(0, np.int64),
        )

    def _ignored(self, rows: slice, real: Flags, a_step: int) -> tuple[Ints, Ints]:
        """Padding, and the token before it, which has nothing to predict, by their steps."""
        length, firsts = self._length, self._told.firsts
        low, high = np.searchsorted(self._gapped, [firsts[rows.start], firsts[rows.stop]])
        begins = self._gap_begins[low:high] - rows.start * length
        counts = self._gap_sizes[low:high] + 1
        kept = real[(begins - 1) // length]
        begins, counts = begins[kept], counts[kept]
        places = np.repeat(begins - 1 - np.cumsum(counts) + counts, counts)
        places += np.arange(len(places))
        size = a_step * length
        steps = np.searchsorted(places, np.arange(0, len(real) * length + 1, size))
        return places % size, steps

    def _last_targets(self, rows: slice) -> Ints:
        """What follows each row in its document; nothing does where that ends."""
        after = self._reader.after(self._last, rows, self._last_lengths[rows])
        return np.where(self._goes_on[rows] & (after >= 0), after, IGNORED)

    def spans(self, rows: slice) -> Spans:
        """As the plan says."""
        firsts = self._told.firsts[rows.start : rows.stop + 1]
        some = slice(firsts[0], firsts[-1])
        starts, rooms = self._told.starts[some], self._told.lengths[some].copy()
        low, high = np.searchsorted(self._gapped, [some.start, some.stop])
        rooms[self._gapped[low:high] - some.start] += self._gap_sizes[low:high]
        streams, origins = self._reader.streams_of(starts)
        return Spans(
            streams=streams[firsts[:-1] - firsts[0]],
            rows=np.repeat(np.arange(len(firsts) - 1), np.diff(firsts)),
            starts=starts - origins,
            lengths=self._told.lengths[some],
            rooms=rooms,
        )

    def uses(self) -> tuple[Ints, Ints]:
        """Row and shard of each piece."""
        return self._pieces.rows, self._pieces.shards

    def cost(self, rows: slice) -> int:
        """Bytes of the shards that they touch."""
        return int(self._reader.raw_sizes[np.unique(self._shards(rows))].sum())

    def _shards(self, rows: slice) -> Ints:
        firsts = self._pieces.firsts
        return self._pieces.shards[firsts[rows.start] : firsts[rows.stop]]
