"""Rows of token ids, as a source of batches: sequences of the streams, or packed documents.

A row consists of segments. A sequence is one segment of its stream, by arithmetic, and where its
documents end is found in the shards. The segments of packed rows are in a plan, which knows
where documents begin and end, so masks cost next to nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from streaming_ext.base.arrays import Flags, Ints, Tokens, ranges
from streaming_ext.base.errors import UsageError
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.documents import Documents
from streaming_ext.reading.masks import Boundaries
from streaming_ext.reading.packing import PackingPlan, RowSegments, open_plan, rounded_up
from streaming_ext.reading.prefetch import Prefetcher, end_all
from streaming_ext.reading.token_reader import FILLING, Runs, TokenReader, by_value


class Spans(NamedTuple):
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

    def __init__(
        self,
        reader: TokenReader,
        segments: RowSegments,
        length: int,
        *,
        multiple: int,
        padding: memoryview | None,
    ) -> None:
        """Lay out the segments of each row, and find them in the shards.

        Args:
            reader: of the shards.
            segments: whose starts count in the reader's space of tokens; one a row at least.
            length: tokens a row.
            multiple: of tokens that each segment takes in its row.
            padding: the bytes of a row of padding; None for rows that are not packed.
        """
        self.reader, self.length = reader, length
        self._segments, self._padding = segments, padding
        firsts = segments.firsts
        lengths = self._lengths = segments.lengths
        rooms = rounded_up(lengths, multiple)
        # Where each segment begins if all are laid end to end, then the end: (segments + 1,)
        begins = self._begins = np.append(0, np.cumsum(rooms))
        # Tokens of each row that its segments take: (rows,)
        self._filled: Ints = np.diff(begins[firsts])
        # Padding after each segment; the last one of a row has the rest of it: (segments,)
        self._gaps: Ints = rooms - lengths
        self._gaps[firsts[1:] - 1] += length - self._filled
        runs = reader.runs(segments.starts, lengths, np.arange(len(rooms) + 1))
        self.runs = runs
        if padding is not None:
            gapped = np.flatnonzero(self._gaps)
            at = runs.firsts[gapped + 1]
            self.runs = Runs(
                firsts=runs.firsts[firsts] + np.searchsorted(gapped, firsts),
                shards=np.insert(runs.shards, at, FILLING),
                begins=np.insert(runs.begins, at, 0),
                ends=np.insert(runs.ends, at, self._gaps[gapped] * reader.dtype.itemsize),
            )

    def ready(self, rows: slice) -> bool:
        """Whether they can be read without waiting."""
        shards = self.runs.shards[self.runs.of(rows)]
        return bool(self.reader.shards.ready[shards[shards != FILLING]].all())

    def uses(self) -> tuple[Ints, Ints]:
        """Row and shard of each use, by row; a shard may come more than once."""
        counts = np.diff(self.runs.firsts)
        return np.repeat(np.arange(len(counts)), counts), self.runs.shards

    def tokens(self, rows: slice) -> Tokens:
        """Their ids, in memory of their own: (rows, length)."""
        return self.reader.copy(self.runs, rows, self._padding).reshape(-1, self.length)

    def start_inside(self, rows: slice, eot_id: int) -> Flags:
        """Whether each begins in the middle of a document: (rows,)."""
        first = self._segments.firsts[:-1][rows]
        if self._padding is not None:
            inside: Flags = ~self._segments.begins[first]
            return inside
        starts = self._segments.starts[first]
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
        edges, padding, continued = (
            self._found(rows, real) if self._padding is None else self._planned(rows, real)
        )
        after = None
        if targets:
            last = self._segments.firsts[1:][rows][continued] - 1
            stops = self._segments.starts[last] + self._lengths[last]
            after = np.full(len(real), -1)
            after[continued] = self.reader.after(stops, self.reader.shards_of(stops - 1))
        edges = np.append(np.arange(len(real) + 1) * self.length, edges)
        return Boundaries.of(edges, padding, after, length=self.length)

    def _found(self, rows: slice, real: Flags) -> tuple[Ints, Ints, Flags]:
        """Edges, padding, and whether the text of each row continues after it, by the shards."""
        reader, runs = self.reader, self.runs
        some = runs.of(rows)
        shards, sizes = runs.shards[some], (runs.ends - runs.begins)[some] // reader.dtype.itemsize
        begins = (runs.begins[some] - reader.headers[shards]) // reader.dtype.itemsize
        found = reader.ends(shards, begins, sizes)
        found = found.chosen(real[found.offsets // self.length])
        continued = np.ones(len(real), bool)
        before_padding = found.offsets[found.followed] + 1
        ended = before_padding[before_padding % self.length == 0] // self.length - 1
        continued[ended] = False
        edges = found.offsets[~(found.padding & found.followed)] + 1
        return edges, found.offsets[found.padding], continued

    def _planned(self, rows: slice, real: Flags) -> tuple[Ints, Ints, Flags]:
        """What `_found` gives, by the plan: an edge at each segment, and at padding."""
        some, row = self._some(rows)
        filled = self._filled[rows]
        padded = np.flatnonzero(real & (filled < self.length))
        columns = self._begins[some] - self._begins[self._segments.firsts[rows]][row]
        offsets = row * self.length + columns
        edges = np.append(offsets[real[row]], padded * self.length + filled[padded])
        gaps = np.where(real[row], self._gaps[some], 0)
        padding = ranges(offsets + self._lengths[some], gaps)
        return edges, padding, ~self._segments.ends[self._segments.firsts[1:][rows] - 1]

    def spans(self, rows: slice) -> Spans:
        """Their segments."""
        some, row = self._some(rows)
        starts, lengths = self._segments.starts[some], self._lengths[some]
        streams, origins = self.reader.streams_of(starts)
        return Spans(
            streams=streams[self._segments.firsts[rows] - some.start],
            rows=row,
            starts=starts - origins,
            lengths=lengths,
            rooms=lengths + self._gaps[some],
        )

    def _some(self, rows: slice) -> tuple[slice, Ints]:
        """The segments of some rows, and the row of each among these: (segments,)."""
        firsts = self._segments.firsts[rows.start : rows.stop + 1]
        row = np.repeat(np.arange(len(firsts) - 1), np.diff(firsts))
        return slice(firsts[0], firsts[-1]), row


class TokenSource:
    """Rows of token ids by stream and number.

    Attributes:
        dtype: type of an id.
        plans: of the packed rows, one a stream; none for sequences.
        multiple: of tokens that each of `segments_of` takes in its row.
        patience: seconds after which a row that does not come is a failure.
    """

    def __init__(
        self,
        reader: TokenReader,
        *,
        cache_limit: int | None,
        plans: Sequence[PackingPlan] = (),
        multiple: int = 1,
        eot_id: int | None = None,
    ) -> None:
        """Take the reader and the plans.

        Args:
            reader: of the shards.
            cache_limit: bytes that all caches together may hold, None for no limit.
            plans: see above.
            multiple: see above.
            eot_id: what fills up a packed row.
        """
        self.reader, self.dtype = reader, reader.dtype
        self.plans, self.multiple, self._eot = tuple(plans), multiple, eot_id
        # What fetching a shard may take, with its retries and those of other processes.
        self.patience = 6 * reader.caches[0].source.timeout + 60
        self._prefetch_limit = None if cache_limit is None else cache_limit // 2

    def bounds(self, length: int) -> list[Ints]:
        """For each stream the first row of each group of the order, then their number."""
        if self.plans:
            return [plan.bounds for plan in self.plans]
        return [cache.index.bounds(length) for cache in self.reader.caches]

    def find_ends(self, eot_id: int) -> None:
        """Find where documents end in each shard when it is opened, unless plans say it."""
        if not self.plans:
            self.reader.find_ends(eot_id)

    def close(self) -> None:
        """Stop the threads that read ahead, and wait until they have ended."""
        end_all(self.reader)

    def locate(self, streams: Ints, sequences: Ints, length: int) -> Rows:
        """Find rows; for a sequence below zero, row 0: (rows,) each."""
        numbers, padding = np.maximum(sequences, 0), None
        if self.plans:
            segments = self._planned(streams, numbers)
            padding = memoryview(np.full(length, self._eot, self.dtype).tobytes())
        else:
            starts = self.reader.stream_starts[streams] + numbers * length
            segments = RowSegments.whole(starts, length)
        return Rows(self.reader, segments, length, multiple=self.multiple, padding=padding)

    def _planned(self, streams: Ints, rows: Ints) -> RowSegments:
        """The segments of packed rows, with starts in the reader's space of tokens."""
        if len(self.plans) == 1:
            return self.plans[0].look_up(rows)
        found = []
        for stream, chosen in by_value(streams):
            own = self.plans[stream].look_up(rows[chosen])
            starts = own.starts + self.reader.stream_starts[stream]
            owners = np.repeat(chosen, np.diff(own.firsts))
            found.append(np.stack([owners, starts, own.marked]))
        segments = np.concatenate(found, axis=1)
        owners, starts, marked = segments[:, np.argsort(segments[0], kind="stable")]
        return RowSegments(np.searchsorted(owners, np.arange(len(rows) + 1)), starts, marked)

    def segments_of(self, stream: int, sequence: int, length: int) -> list[tuple[int, int]]:
        """What a row is made of: first token and the one after it, in its stream, of each."""
        row = self.locate(np.array([stream]), np.array([sequence]), length).spans(slice(0, 1))
        stops = row.starts + row.lengths
        return list(zip(row.starts.tolist(), stops.tolist(), strict=True))

    def sequences_with(self, stream: int, first: int, stop: int, length: int) -> Ints:
        """The rows that hold any of the tokens [first, stop) of a stream, sorted."""
        if self.plans:
            return self.plans[stream].rows_with(first, stop)
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


def source_of(
    caches: Sequence[ShardCache],
    *,
    packing: str | None,
    length: int,
    cache_limit: int | None,
    left_out: Sequence[Documents] | None = None,
    multiple: int | None = None,
) -> TokenSource:
    """The source of some streams.

    Args:
        caches: of the streams.
        packing: None for sequences cut out of the stream.
        length: tokens a row.
        cache_limit: bytes that all caches together may hold.
        left_out: documents that no packed row holds, one table a stream.
        multiple: of tokens that each document takes in a packed row; 1 by default.

    Raises:
        UsageError: the streams do not fit together, or do not know their documents.
        CorruptDatasetError: what a dataset says of its documents is missing or damaged.
    """
    reader = TokenReader(caches)
    if packing is None:
        return TokenSource(reader, cache_limit=cache_limit)
    multiple = multiple or 1
    if length % multiple:
        raise UsageError(
            f"`sequence_length` must be a multiple of document_multiple={multiple}, got {length}."
        )
    plans = [
        open_plan(
            cache,
            length,
            left_out=None if left_out is None else left_out[stream],
            multiple=multiple,
        )
        for stream, cache in enumerate(caches)
    ]
    eot_id = caches[0].index.eot_id  # known: the dataset lists its documents
    return TokenSource(
        reader, cache_limit=cache_limit, plans=plans, multiple=multiple, eot_id=eot_id
    )
