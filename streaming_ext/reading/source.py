"""Sources of tokens: rows of ids by stream and number. Sources wrap sources.

`Sequences` cuts the streams of the shards into rows, by arithmetic. `Excluding` leaves some of
these out, and `Packed` puts whole documents together in rows. A source says by `identity` what a
state names of it; the order, the loader and the masks are the same for all.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from streaming_ext.base.arrays import Flags, Ints, Tokens
from streaming_ext.reading.boundaries import Boundaries
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.token_reader import FILLING, Runs, TokenReader


class DocumentRanges(NamedTuple):
    """Some documents of a split: both of shape (documents,).

    Attributes:
        starts: first token of each in the split's stream.
        lengths: tokens of each, its end-of-text id counted.
    """

    starts: Ints
    lengths: Ints


class Spans(NamedTuple):
    """Ranges of the streams that rows are made of; padding is in no range.

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
    """Some rows of consecutive tokens that were found and not read yet.

    Attributes:
        reader: the reader of the shards.
        length: tokens per row.
        runs: the runs of tokens to copy the rows from.
    """

    filling: memoryview | None = None  # the bytes of a row of padding, if rows may be padded

    def __init__(self, reader: TokenReader, starts: Ints, length: int) -> None:
        """Find the rows in the shards.

        Args:
            reader: the reader of the shards.
            starts: first token of each row in the reader's space of tokens: (rows,).
            length: tokens per row.
        """
        self.reader, self.length, self._starts = reader, length, starts
        self.runs: Runs = reader.runs(starts, length, np.arange(len(starts) + 1))

    def ready(self, rows: slice) -> bool:
        """Return whether the given rows can be read without waiting."""
        shards = self.runs.shards[self.runs.of(rows)]
        return bool(self.reader.shards.ready[shards[shards != FILLING]].all())

    def uses(self) -> tuple[Ints, Ints]:
        """Row and shard of each use, by row; a shard may come more than once."""
        counts = np.diff(self.runs.firsts)
        return np.repeat(np.arange(len(counts)), counts), self.runs.shards

    def tokens(self, rows: slice) -> Tokens:
        """The ids of some rows, in memory of their own: (rows, length)."""
        return self.reader.copy(self.runs, rows, self.filling).reshape(-1, self.length)

    def start_inside(self, rows: slice, eot_id: int) -> Flags:
        """Return which rows begin in the middle of a document: (rows,)."""
        starts = self._starts[rows]
        inside = ~np.isin(starts, self.reader.stream_starts)  # a stream begins with a document
        inside[inside] = self.reader.single(starts[inside] - 1) != eot_id
        return inside

    def boundaries(self, rows: slice, *, real: Flags, targets: bool) -> Boundaries:
        """Find where documents begin and end in some rows.

        Args:
            rows: the slice of the rows.
            real: False for rows that only fill up a batch: (rows,).
            targets: look up the token after each row too.
        """
        edges, padding, continued = self._edges(rows, real)
        after = None
        if targets:
            stops = self._stops(rows)[continued]
            after = np.full(len(real), -1)
            after[continued] = self.reader.after(stops, self.reader.shards_of(stops - 1))
        edges = np.append(np.arange(len(real) + 1) * self.length, edges)
        return Boundaries.of(edges, padding, after, length=self.length)

    def _stops(self, rows: slice) -> Ints:
        """The token after the last one of each row: (rows,)."""
        return self._starts[rows] + self.length

    def _edges(self, rows: slice, real: Flags) -> tuple[Ints, Ints, Flags]:
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

    def spans(self, rows: slice) -> Spans:
        """The ranges that some rows are made of."""
        starts = self._starts[rows]
        streams, origins = self.reader.streams_of(starts)
        lengths = np.full(len(starts), self.length)
        return Spans(streams, np.arange(len(starts)), starts - origins, lengths, lengths)


class TokenSource(Protocol):
    """Rows of token ids by stream and number.

    Attributes:
        reader: the reader of the shards.
        length: tokens of the longest rows.
        bounds: the first row of each group of the order, then the number of rows, per stream.
        left_out: the rows of each stream that do not come, sorted; None for none.
        excluded: documents that no row holds, one table per stream; None for none.
    """

    reader: TokenReader
    length: int
    bounds: Sequence[Ints]
    left_out: Sequence[Ints] | None
    excluded: Sequence[DocumentRanges] | None

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each stream that come."""
        sizes = [int(bounds[-1]) for bounds in self.bounds]
        out = self.left_out
        return sizes if out is None else [a - len(b) for a, b in zip(sizes, out, strict=True)]

    def identity(self) -> dict[str, Any]:
        """The settings of the source that decide which rows there are, as a state names them."""

    def find_ends(self, eot_id: int) -> None:
        """Find where documents end in each shard when it is opened, unless it is known."""

    def locate(self, streams: Ints, sequences: Ints, length: int) -> Rows:
        """Find rows of `length` tokens; for a sequence below zero, row 0: (rows,) each."""

    def sequences_with(self, stream: int, first: int, stop: int) -> Ints:
        """The rows that hold any of the tokens [first, stop) of a stream, sorted."""


class Sequences(TokenSource):
    """Rows of consecutive tokens, cut out of the stream of each dataset.

    rows of 4 tokens of a stream of 10: row 0 holds tokens 0 to 3, row 1 tokens 4 to 7;
    tokens 8 and 9 are in no row
    """

    left_out, excluded = None, None

    def __init__(self, caches: Sequence[ShardCache], length: int) -> None:
        """Lay out the streams; no shard is opened yet.

        Args:
            caches: the caches of the streams.
            length: tokens of the longest rows.
        """
        self.reader, self.length = TokenReader(caches), length
        self.bounds = [cache.index.bounds(length) for cache in caches]

    def identity(self) -> dict[str, Any]:
        """Nothing: length and streams are named by the order and by fingerprints."""
        return {}

    def find_ends(self, eot_id: int) -> None:
        """Have the reader look for ends of documents."""
        self.reader.find_ends(eot_id)

    def locate(self, streams: Ints, sequences: Ints, length: int) -> Rows:
        """See `TokenSource`."""
        starts = self.reader.stream_starts[streams] + np.maximum(sequences, 0) * length
        return Rows(self.reader, starts, length)

    def sequences_with(self, stream: int, first: int, stop: int) -> Ints:
        """See `TokenSource`."""
        return np.arange(first // self.length, (stop - 1) // self.length + 1)
