"""Sources of tokens: rows of ids by stream and number. Sources wrap sources.

`Sequences` cuts the streams of the shards, or their chosen documents, into rows by arithmetic.
`Excluding` leaves some of these rows out, and `Packed` puts whole documents together in rows. Each
source names its settings for a state in `identity`; the order, the loader and the masks are the
same for all sources.
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
        starts: the first token of each document in the split's stream.
        lengths: the tokens of each document, including its end-of-text id.
    """

    starts: Ints
    lengths: Ints


class Spans(NamedTuple):
    """Ranges of the streams that rows consist of; no range holds padding.

    Attributes:
        streams: the stream of each row: (rows,).
        rows: the row of each span, ascending: (spans,).
        starts: the first token of each span in its stream: (spans,).
        lengths: the tokens of each span: (spans,).
        rooms: the tokens that each span takes in its row, with its padding: (spans,).
    """

    streams: Ints
    rows: Ints
    starts: Ints
    lengths: Ints
    rooms: Ints


class Rows:
    """Rows that were located but not read yet: segments of the streams, end to end.

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
            segments: the first segment of each row, then the number of segments: (rows + 1,); the
                first token of each segment in the reader's space, and its tokens: (segments,) each.
            length: tokens per row.
            after: the token after each row in its stream: (rows,).
        """
        self.reader, self.length, self._after = reader, length, after
        self._firsts, self._starts, self._lengths = segments
        self._rooms = self._lengths  # tokens of each segment, with its padding
        self.runs: Runs = reader.runs(self._starts, self._lengths, self._firsts)

    def ready(self, rows: slice) -> bool:
        """Return whether the given rows can be read without waiting."""
        shards = self.runs.shards[self.runs.of(rows)]
        return bool(self.reader.shards.ready[shards[shards != FILLING]].all())

    def uses(self) -> tuple[Ints, Ints]:
        """Return the row and the shard of each use, by row; a shard may occur more than once."""
        counts = np.diff(self.runs.firsts)
        return np.repeat(np.arange(len(counts)), counts), self.runs.shards

    def tokens(self, rows: slice) -> Tokens:
        """Copy the ids of some rows: (rows, length)."""
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
            targets: True to look up the token after each row too.
        """
        edges, padding, continued = self._edges(rows, real)
        last_targets = np.full(len(real) if targets else 0, IGNORED)
        if targets:
            last = (self._firsts[1:][rows] - 1)[continued]
            shards = self.reader.shards_of(self._starts[last] + self._lengths[last] - 1)
            after = self.reader.after(self._after[rows][continued], shards)
            last_targets[continued] = np.where(after < 0, IGNORED, after)
        edges = np.append(np.arange(len(real) + 1) * self.length, edges)
        # The token before padding has no target.
        ignored = np.union1d(padding, padding[padding % self.length > 0] - 1)
        return Boundaries(np.unique(edges.astype(np.int32)), ignored, last_targets)

    def _edges(self, rows: slice, real: Flags) -> tuple[Ints, Ints, Flags]:
        """Find edges and padding in the shards, and whether the text of each row continues."""
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
        """Return the segments of some rows as spans."""
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
        """Return the segments of some rows, and the row of each among these: (segments,)."""
        firsts = self._firsts[rows.start : rows.stop + 1]
        row = np.repeat(np.arange(len(firsts) - 1), np.diff(firsts))
        return slice(firsts[0], firsts[-1]), row


def segments_of_rows(
    streams: Ints, rows: Ints, look_up: Callable[[int, Ints], Sequence[Ints]]
) -> Sequence[Ints]:
    """Look up the segments of some rows in each stream, and join them row by row.

    Args:
        streams: the stream of each row: (rows,).
        rows: the number of each row, as `look_up` takes it: (rows,).
        look_up: the function that finds the segments of some rows of a stream: the first segment of
            each row, then the number of segments, and further columns with a value per segment.
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
        left_out: the rows of each stream that training does not get, sorted; None for none.
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
        """The number of rows of each stream, without those left out."""
        sizes = [int(bounds[-1]) for bounds in self.bounds]
        out = self.left_out
        return sizes if out is None else [a - len(b) for a, b in zip(sizes, out, strict=True)]

    def identity(self) -> dict[str, Any]:
        """Return the settings of the source that decide its rows, as a state names them."""

    def find_ends(self, eot_id: int) -> None:
        """Find the ends of documents in each shard when it is opened, unless they are known."""

    def locate(self, streams: Ints, sequences: Ints, length: int) -> Rows:
        """Locate rows of `length` tokens; a sequence below zero stands for row 0: (rows,) each."""

    def sequences_with(self, stream: int, documents: DocumentRanges) -> Ints:
        """Return the rows of a stream that hold a token of some documents, sorted."""


class Sequences(TokenSource):
    """Rows of consecutive tokens, cut out of each dataset's stream or its chosen documents.

    rows of 4 tokens of a stream of 10: row 0 holds tokens 0 to 3, row 1 tokens 4 to 7;
    tokens 8 and 9 are in no row. If the documents of tokens 0 to 2 and 5 to 9 are chosen,
    row 0 holds tokens 0, 1, 2 and 5, row 1 tokens 6 to 9

    Attributes:
        tokens: the tokens of each stream from which rows are cut.
    """

    left_out, excluded = None, None

    def __init__(
        self,
        caches: Sequence[ShardCache],
        length: int,
        chosen: Sequence["ChosenDocuments | None"],
    ) -> None:
        """Lay out the streams without opening a shard.

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
        """Return nothing: the order names the length, and fingerprints name the streams."""
        return {}

    def find_ends(self, eot_id: int) -> None:
        """Make the reader find the ends of documents."""
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
