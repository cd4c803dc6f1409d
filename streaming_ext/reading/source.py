"""Sources of tokens: rows of ids by stream and number. Sources wrap sources.

`Sequences` cuts the streams of the shards, or their chosen documents, into rows, by arithmetic.
`Excluding` leaves some of these out, and `Packed` puts whole documents together in rows. A source
says by `identity` what a state names of it; the order, the loader and the masks are the same for
all.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from streaming_ext.base.arrays import Flags, Ints, Tokens, ranges
from streaming_ext.format.shard import sequence_starts
from streaming_ext.reading.boundaries import IGNORED, Boundaries, Ends
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.token_reader import FILLING, Runs, TokenReader, by_value

if TYPE_CHECKING:
    from streaming_ext.reading.chosen import ChosenDocuments


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
    """Some rows that were found and not read yet: segments of the streams, end to end.

    Attributes:
        reader: the reader of the shards.
        length: tokens per row.
        runs: the runs of tokens to copy the rows from.
    """

    filling: memoryview | None = None  # the bytes of a row of padding, if rows may be padded

    def __init__(
        self, reader: TokenReader, segments: Sequence[Ints], length: int, *, after: Ints
    ) -> None:
        """Find the rows in the shards.

        Args:
            reader: the reader of the shards.
            segments: first segment of each row, then their number: (rows + 1,); first token of each
                segment in the reader's space of tokens, and its tokens: (segments,) each.
            length: tokens per row.
            after: the token after each row in its stream: (rows,).
        """
        self.reader, self.length, self._after = reader, length, after
        self._firsts, self._starts, self._lengths = segments
        self._rooms = self._lengths  # of each segment, with its padding
        self.runs: Runs = reader.runs(self._starts, self._lengths, self._firsts)

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
        starts = self._starts[self._firsts[:-1][rows]]
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
        last_targets = np.full(len(real) if targets else 0, IGNORED)
        if targets:
            last = (self._firsts[1:][rows] - 1)[continued]
            shards = self.reader.shards_of(self._starts[last] + self._lengths[last] - 1)
            after = self.reader.after(self._after[rows][continued], shards)
            last_targets[continued] = np.where(after < 0, IGNORED, after)
        edges = np.append(np.arange(len(real) + 1) * self.length, edges)
        # The token before padding has nothing to predict.
        ignored = np.union1d(padding, padding[padding % self.length > 0] - 1)
        return Boundaries(np.unique(edges.astype(np.int32)), ignored, last_targets)

    def _edges(self, rows: slice, real: Flags) -> tuple[Ints, Ints, Flags]:
        """Edges, padding, and whether the text of each row continues after it, by the shards."""
        reader, runs = self.reader, self.runs
        some = runs.of(rows)
        shards, sizes = runs.shards[some], (runs.ends - runs.begins)[some] // reader.dtype.itemsize
        begins = (runs.begins[some] - reader.headers[shards]) // reader.dtype.itemsize
        found = reader.ends(shards, begins, sizes)
        is_real = real[found.offsets // self.length]
        found = Ends(*(column[is_real] for column in found))
        continued = np.ones(len(real), bool)
        before_padding = found.offsets[found.followed] + 1
        ended = before_padding[before_padding % self.length == 0] // self.length - 1
        continued[ended] = False
        edges = found.offsets[~(found.padding & found.followed)] + 1
        return edges, found.offsets[found.padding], continued

    def spans(self, rows: slice) -> Spans:
        """The segments of some rows."""
        some, row = self._some(rows)
        starts = self._starts[some]
        streams, origins = self.reader.streams_of(starts)
        return Spans(
            streams=streams[self._firsts[rows] - some.start],
            rows=row,
            starts=starts - origins,
            lengths=self._lengths[some],
            rooms=self._rooms[some],
        )

    def _some(self, rows: slice) -> tuple[slice, Ints]:
        """The segments of some rows, and the row of each among these: (segments,)."""
        firsts = self._firsts[rows.start : rows.stop + 1]
        row = np.repeat(np.arange(len(firsts) - 1), np.diff(firsts))
        return slice(firsts[0], firsts[-1]), row


def segments_of_rows(
    streams: Ints, rows: Ints, look_up: Callable[[int, Ints], Sequence[Ints]]
) -> Sequence[Ints]:
    """Join what a function finds in each stream: the segments of some rows, row by row.

    Args:
        streams: the stream of each row: (rows,).
        rows: the number of each row, as the function takes it: (rows,).
        look_up: gives the segments of some rows of a stream: first segment of each row, then their
            number, and further columns with a value for each segment.
    """
    found = [(own, look_up(stream, rows[own])) for stream, own in by_value(streams)]
    if len(found) == 1:
        return found[0][1]
    table = [
        np.stack([np.repeat(own, np.diff(firsts)), *columns]) for own, (firsts, *columns) in found
    ]
    segments = np.concatenate(table, axis=1)
    owners, *columns = segments[:, np.argsort(segments[0], kind="stable")]
    return [np.searchsorted(owners, np.arange(len(rows) + 1)), *columns]


class TokenSource(Protocol):
    """Rows of token ids by stream and number.

    Attributes:
        reader: the reader of the shards.
        length: tokens of the longest rows.
        bounds: the first row of each group of the order, then the number of rows, per stream.
        left_out: the rows of each stream that do not come, sorted; None for none.
        chosen: the documents of each stream that rows may hold; None for all.
        excluded: documents that no row holds, one table per stream; None for none.
    """

    reader: TokenReader
    length: int
    bounds: Sequence[Ints]
    left_out: Sequence[Ints] | None
    chosen: Sequence["ChosenDocuments | None"]
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

    def sequences_with(self, stream: int, documents: DocumentRanges) -> Ints:
        """The rows of a stream that hold a token of some documents, sorted."""


class Sequences(TokenSource):
    """Rows of consecutive tokens, cut out of each dataset's stream, or of its chosen documents.

    rows of 4 tokens of a stream of 10: row 0 holds tokens 0 to 3, row 1 tokens 4 to 7;
    tokens 8 and 9 are in no row. If the documents of tokens 0 to 2 and 5 to 9 are chosen,
    row 0 holds tokens 0, 1, 2 and 5, row 1 tokens 6 to 9

    Attributes:
        tokens: tokens of each stream that rows are cut out of.
    """

    left_out, excluded = None, None

    def __init__(
        self,
        caches: Sequence[ShardCache],
        length: int,
        chosen: Sequence["ChosenDocuments | None"],
    ) -> None:
        """Lay out the streams; no shard is opened yet.

        Args:
            caches: the caches of the streams.
            length: tokens of the longest rows.
            chosen: the chosen documents of each stream; None for all.
        """
        self.reader, self.length, self.chosen = TokenReader(caches), length, chosen
        starts = [
            cache.index.token_starts if own is None else own.before(cache.index.token_starts)
            for cache, own in zip(caches, chosen, strict=True)
        ]
        self.tokens = [int(each[-1]) for each in starts]
        self.bounds = [sequence_starts(each, length) for each in starts]

    def identity(self) -> dict[str, Any]:
        """Nothing: length and streams are named by the order and by fingerprints."""
        return {}

    def find_ends(self, eot_id: int) -> None:
        """Have the reader look for ends of documents."""
        self.reader.find_ends(eot_id)

    def locate(self, streams: Ints, sequences: Ints, length: int) -> Rows:
        """See `TokenSource`."""
        starts = np.maximum(sequences, 0) * length
        origins, after = self.reader.stream_starts[streams], starts + length

        def look_up(stream: int, starts: Ints) -> Sequence[Ints]:
            chosen = self.chosen[stream]
            if chosen is not None:
                return chosen.segments(starts, length)
            return np.arange(len(starts) + 1), starts, np.full(len(starts), length)

        firsts, begins, lengths = segments_of_rows(streams, starts, look_up)
        for stream, chosen in enumerate(self.chosen):
            if chosen is not None:
                own = streams == stream
                after[own] = chosen.offsets(after[own])
        begins = begins + np.repeat(origins, np.diff(firsts))
        return Rows(self.reader, (firsts, begins, lengths), length, after=origins + after)

    def sequences_with(self, stream: int, documents: DocumentRanges) -> Ints:
        """See `TokenSource`."""
        firsts, lengths = documents
        if (chosen := self.chosen[stream]) is not None:
            firsts, lengths = chosen.numbered(firsts, lengths)
        first = firsts // self.length
        last = (firsts + lengths - 1) // self.length
        sequences: Ints = np.unique(ranges(first, last - first + 1))
        return sequences[: np.searchsorted(sequences, self.bounds[stream][-1])]
