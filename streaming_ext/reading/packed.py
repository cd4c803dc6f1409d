"""Rows of complete documents, as a source of batches.

The packing plan gives the bounds of documents, so masks cost next to nothing.
"""

from collections.abc import Sequence

import numpy as np

from streaming_ext.base.arrays import Flags, Ints, Tokens, ranges
from streaming_ext.base.errors import UsageError
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.documents import Documents
from streaming_ext.reading.masks import Boundaries
from streaming_ext.reading.packing import PackingPlan, RowSegments, open_plan, rounded_up
from streaming_ext.reading.rows import Rows, Spans, TokenSource
from streaming_ext.reading.token_reader import FILLING, Runs, TokenReader, by_value


class PackedSource(TokenSource):
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
            cache_limit: see `TokenSource`.
            multiple: of tokens that each segment takes in its row.
        """
        super().__init__(reader, cache_limit=cache_limit)
        self.multiple = multiple
        self.plans = tuple(plans)
        self._eot = eot_id

    def bounds(self, length: int) -> list[Ints]:
        """The first row of each group, then their number."""
        return [plan.bounds for plan in self.plans]

    def find_ends(self, eot_id: int) -> None:
        """Nothing is to be found: the plan says it."""

    def locate(self, streams: Ints, sequences: Ints, length: int) -> Rows:
        """Look up the segments of rows; a row below zero is looked up as row 0."""
        segments = self._segments(streams, np.maximum(sequences, 0))
        filling = memoryview(np.full(length, self._eot, self.dtype).tobytes())
        return PackedRows(self.reader, segments, length, self.multiple, filling)

    def segments_of(self, stream: int, sequence: int, length: int) -> list[tuple[int, int]]:
        """Of each document one."""
        found = self.plans[stream].look_up(np.array([sequence]))
        stops = found.starts + found.lengths
        return list(zip(found.starts.tolist(), stops.tolist(), strict=True))

    def sequences_with(self, stream: int, first: int, stop: int, length: int) -> Ints:
        """Out of the plan."""
        return self.plans[stream].rows_with(first, stop)

    def _segments(self, streams: Ints, rows: Ints) -> RowSegments:
        """The segments of rows, with starts in the reader's space of tokens."""
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


class PackedRows(Rows):
    """Rows whose segments are known, with padding behind some of them; see `Rows` for the words."""

    def __init__(
        self,
        reader: TokenReader,
        segments: RowSegments,
        length: int,
        multiple: int,
        filling: memoryview,
    ) -> None:
        """Lay out the segments of each row.

        Args:
            reader: of the shards.
            segments: whose starts count in the reader's space of tokens; one a row at least.
            length: tokens a row.
            multiple: of tokens that each segment takes in its row.
            filling: the bytes of a row of padding.
        """
        self.reader, self.length = reader, length
        self._segments, self._multiple, self._filling = segments, multiple, filling
        firsts = segments.firsts
        lengths = self._lengths = segments.lengths
        rooms = rounded_up(lengths, multiple)
        ends = np.append(0, np.cumsum(rooms))
        # Where each segment begins in its row: (segments,)
        self._columns: Ints = ends[:-1] - np.repeat(ends[firsts[:-1]], np.diff(firsts))
        # Tokens of each row that its segments take: (rows,)
        self._filled: Ints = np.diff(ends[firsts])
        # Padding behind each segment; the last one of a row has the rest of it: (segments,)
        self._gaps: Ints = rooms - lengths
        self._gaps[firsts[1:] - 1] += length - self._filled
        runs = reader.runs(segments.starts, lengths, np.arange(len(rooms) + 1))
        gapped = np.flatnonzero(self._gaps)
        behind = runs.firsts[gapped + 1]
        self.runs = Runs(
            firsts=runs.firsts[firsts] + np.searchsorted(gapped, firsts),
            shards=np.insert(runs.shards, behind, FILLING),
            begins=np.insert(runs.begins, behind, 0),
            ends=np.insert(runs.ends, behind, self._gaps[gapped] * reader.dtype.itemsize),
        )

    def tokens(self, rows: slice) -> Tokens:
        """Copy their segments out of the shards, and fill up with end-of-text ids."""
        return self.reader.copy(self.runs, rows, self._filling).reshape(-1, self.length)

    def start_inside(self, rows: slice, eot_id: int) -> Flags:
        """Whether the first segment of each begins within its document."""
        inside: Flags = ~self._segments.begins[self._segments.firsts[:-1][rows]]
        return inside

    def boundaries(self, rows: slice, *, real: Flags, targets: bool) -> Boundaries:
        """As the plan says: an edge at each segment, and at the padding of a row."""
        length, segments = self.length, self._segments
        some, row = self._some(rows)
        filled = self._filled[rows]
        padded = np.flatnonzero(real & (filled < length))
        offsets = row * length + self._columns[some]
        edges = np.concatenate(
            [
                np.arange(len(real) + 1) * length,
                offsets[real[row]],
                padded * length + filled[padded],
            ]
        )
        gaps = np.where(real[row], self._gaps[some], 0)
        padding = ranges(offsets + self._lengths[some], gaps)
        after = None
        if targets:  # nothing follows a row at the end of its document
            last = segments.firsts[1:][rows] - 1
            goes_on = ~segments.ends[last]
            ends = segments.starts[last[goes_on]] + self._lengths[last[goes_on]]
            after = np.full(len(last), -1)
            after[goes_on] = self.reader.after(ends, self.reader.shards_of(ends - 1))
        return Boundaries.of(edges, padding, after, length=length)

    def spans(self, rows: slice) -> Spans:
        """As the plan says."""
        some, row = self._some(rows)
        starts, lengths = self._segments.starts[some], self._lengths[some]
        streams, origins = self.reader.streams_of(starts)
        firsts = self._segments.firsts[rows]
        return Spans(
            streams=streams[firsts - some.start],
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
    eot_id = caches[0].index.eot_id
    if eot_id is None:
        raise UsageError("packing= needs the id that ends a document, which the dataset says not.")
    return PackedSource(reader, plans, eot_id=eot_id, cache_limit=cache_limit, multiple=multiple)
