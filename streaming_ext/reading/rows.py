"""Rows of token ids, as a source of batches: sequences of the streams, by arithmetic.

Order, partition, checkpoint and loader know a source by what `TokenSource` offers; packed rows
(`packed.py`) are another one.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from streaming_ext.base.arrays import Flags, Ints, Tokens
from streaming_ext.reading.masks import Boundaries, Ends
from streaming_ext.reading.prefetch import Prefetcher, end_all
from streaming_ext.reading.token_reader import FILLING, TokenReader, by_value


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """What rows are made of, in their streams; padding is no span.

    Attributes:
        streams: stream of each row: (rows,).
        rows: number of the row of each span, ascending: (spans,).
        starts: first token of each in its stream: (spans,).
        lengths: tokens of each: (spans,).
        rooms: tokens that each takes in its row, with its padding: (spans,).
    """

    streams: Ints
    rows: Ints
    starts: Ints
    lengths: Ints
    rooms: Ints


class Rows:
    """Some rows that were found and not read yet; a slice chooses among them."""

    def __init__(self, reader: TokenReader, starts: Ints, length: int) -> None:
        """Find them in the shards.

        Args:
            reader: of the shards.
            starts: first token of each: (rows,).
            length: tokens a row.
        """
        self.reader = reader
        self.starts = starts
        self.length = length
        self.runs = reader.runs(starts, length, np.arange(len(starts) + 1))

    def ready(self, rows: slice) -> bool:
        """Whether they can be read without waiting."""
        return bool(self.reader.shards.ready[self._shards(rows)].all())

    def cost(self, rows: slice) -> int:
        """Bytes of the shards that they touch."""
        return int(self.reader.raw_sizes[np.unique(self._shards(rows))].sum())

    def uses(self) -> tuple[Ints, Ints]:
        """Row and shard of each use, by row; a shard may come more than once."""
        counts = np.diff(self.runs.firsts)
        return np.repeat(np.arange(len(counts)), counts), self.runs.shards

    def _shards(self, rows: slice) -> Ints:
        shards = self.runs.shards[self.runs.of(rows)]
        found: Ints = shards[shards != FILLING]
        return found

    def tokens(self, rows: slice) -> Tokens:
        """Their ids, in memory of their own: (rows, length)."""
        return self.reader.copy(self.runs, rows).reshape(-1, self.length)

    def start_inside(self, rows: slice, eot_id: int) -> Flags:
        """Whether each begins in the middle of a document: (rows,)."""
        starts = self.starts[rows]
        inside = ~np.isin(starts, self.reader.stream_starts)  # a stream begins with a document
        inside[inside] = self.reader.single(starts[inside] - 1) != eot_id
        return inside

    def boundaries(self, rows: slice, *, real: Flags, targets: bool) -> Boundaries:
        """Where documents begin and end in rows.

        Args:
            rows: which of them.
            real: False for rows that only fill up a batch: (rows,).
            targets: whether targets are wanted.
        """
        reader, runs, length = self.reader, self.runs, self.length
        some = runs.of(rows)
        shards, sizes = runs.shards[some], (runs.ends - runs.begins)[some] // reader.dtype.itemsize
        begins = (runs.begins[some] - reader.headers[shards]) // reader.dtype.itemsize
        laid = np.cumsum(sizes) - sizes
        found = Ends.joined(
            [
                reader.ends(shard).in_runs(begins[own], begins[own] + sizes[own], laid[own])
                for shard, own in by_value(shards)
            ]
        )
        if not real.all():
            found = found.chosen(real[found.offsets // length])
        after = None
        if targets:
            last = runs.shards[runs.firsts[1:][rows] - 1]
            after = reader.after(self.starts[rows] + length, last)
            behind = found.offsets[found.followed] + 1
            after[behind[behind % length == 0] // length - 1] = -1  # padding follows the row
        return Boundaries.of(
            np.append(
                np.arange(len(real) + 1) * length,
                found.offsets[~(found.padding & found.followed)] + 1,
            ),
            found.offsets[found.padding],
            after,
            length=length,
        )

    def spans(self, rows: slice) -> Spans:
        """Each is one."""
        starts = self.starts[rows]
        streams, origins = self.reader.streams_of(starts)
        lengths = np.full(len(starts), self.length)
        return Spans(
            streams=streams,
            rows=np.arange(len(starts)),
            starts=starts - origins,
            lengths=lengths,
            rooms=lengths,
        )


class TokenSource:
    """Sequences of token ids by stream and number.

    Attributes:
        dtype: type of an id.
        patience: seconds after which a row that does not come is a failure.
        hold_limit: bytes that one batch in the making should hold at most, None for no limit.
        multiple: of tokens that each of `segments_of` takes in its row.
    """

    multiple = 1

    def __init__(self, reader: TokenReader, *, cache_limit: int | None) -> None:
        """Take the reader.

        Args:
            reader: of the shards.
            cache_limit: bytes that all caches together may hold, None for no limit.
        """
        self.reader, self.dtype = reader, reader.dtype
        # What fetching a shard may take, with its retries and those of who is waited for.
        self.patience = 6 * reader.caches[0].source.timeout + 60
        self._prefetch_limit = None if cache_limit is None else cache_limit // 2
        self.hold_limit: int | None = None
        if cache_limit is not None and reader.shards.limited:
            self.hold_limit = cache_limit // 4

    def bounds(self, length: int) -> list[Ints]:
        """For each stream the first sequence of each group of the order, then their number."""
        return [cache.index.bounds(length) for cache in self.reader.caches]

    def find_ends(self, eot_id: int) -> None:
        """Find where documents end in each shard when it is opened, for `Rows.boundaries`."""
        self.reader.find_ends(eot_id)

    def close(self) -> None:
        """Stop the threads that read ahead, and wait until they have ended."""
        end_all(self.reader)

    def locate(self, streams: Ints, sequences: Ints, length: int) -> Rows:
        """Find rows; for a sequence below zero, any row: (rows,) each."""
        starts = self.reader.stream_starts[streams] + np.maximum(sequences, 0) * length
        return Rows(self.reader, starts, length)

    def segments_of(self, stream: int, sequence: int, length: int) -> list[tuple[int, int]]:
        """What a sequence is made of: first token and the one behind, in its stream, of each."""
        return [(sequence * length, (sequence + 1) * length)]

    def sequences_with(self, stream: int, first: int, stop: int, length: int) -> Ints:
        """The sequences that hold any of the tokens [first, stop) of a stream, sorted."""
        return np.arange(first // length, (stop - 1) // length + 1)

    @contextmanager
    def read_ahead(
        self,
        upcoming: Iterable[tuple[range, Ints, Ints]],
        length: int,
        *,
        ahead: int,
        now: Callable[[], int],
    ) -> Iterator[Callable[[], None]]:
        """Open the shards of coming steps in threads, in their order, until the block ends.

        The result is a function that raises an unexpected error of these threads.

        Args:
            upcoming: steps with their streams and sequences: (steps, rows of a step) each.
            length: tokens a row.
            ahead: steps to run ahead of training.
            now: the step that training has reached.
        """
        prefetcher = Prefetcher(
            self.reader,
            self._first_uses(upcoming, length),
            ahead=ahead,
            limit=self._prefetch_limit,
            now=now,
        )
        try:
            yield prefetcher.require_well
        finally:
            prefetcher.stop()

    def _first_uses(
        self, upcoming: Iterable[tuple[range, Ints, Ints]], length: int
    ) -> Iterator[tuple[int, int]]:
        """Step and shard of each first use, leaving out what is ready."""
        ready = self.reader.shards.ready
        for steps, streams, sequences in upcoming:
            if ready.all():
                return
            rows, shards = self.locate(streams.reshape(-1), sequences.reshape(-1), length).uses()
            distinct, at = np.unique(shards, return_index=True)
            for offset in np.argsort(at).tolist():
                shard = int(distinct[offset])
                if shard != FILLING and not ready[shard]:
                    yield steps[int(rows[at[offset]]) // streams.shape[1]], shard
