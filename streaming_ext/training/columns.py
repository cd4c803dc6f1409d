"""Columns: the contents of a batch besides `tokens`, each by its name in `extras`.

A `RowColumn` is made where the shards are read, in a worker if there are workers; a `SegmentColumn`
is made where batches are handed over. To add a column, write its class, put it in `COLUMNS`, and
describe it in docs/how-to/train.md.

Boundaries of documents are found for the rows of many steps at once, and spread over the tokens of
each step only for columns with a value per token:

    rows of 8 tokens, documents of 3, 6 and 7: the first row has segments of 3 and 5 tokens, so
    position_ids are 0 1 2 0 1 2 3 4, document_ids 0 0 0 1 1 1 1 1, and cu_seqlens of the batch
    begins with 0 3 8; the third token ends its document, and its target is the first of the next

A few large copies make these values. Positions, which are most of the work, consist of granules: a
granule is a copy out of one row of counting numbers, from the position of its first token on. Then
a granule from zero is copied to the start of every segment.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Flags, Ints, Small, Tokens, ceil_div, ranges, windows
from streaming_ext.reading.boundaries import IGNORED, Boundaries
from streaming_ext.reading.buffers import Buffers
from streaming_ext.reading.source import Rows

Batch = dict[str, Any]
MASKED: Final = "masked"  # rows that a filter masked; they are for counting, not for training
_GRANULE: Final = 128  # tokens copied at once


class Column:
    """The values of a batch under one name.

    Attributes:
        name: the name in a batch.
        per_token: True for a value per token, which context-parallel ranks divide.
        needs_ends: True for columns that need the id that ends a document.
    """

    name: str
    per_token, needs_ends = False, False

    def identity(self) -> dict[str, Any]:
        """Return the settings that change which rows count, or what is counted; most have none."""
        return {}


class ReadRows(NamedTuple):
    """Rows of a batch as they were read.

    Attributes:
        tokens: the ids of the rows: (rows, length).
        located: the located rows, of which these are a slice.
        rows: the slice of the located rows.
        real: False for rows that only fill up a step: (rows,).
        streams, sequences: the stream of each row, and its number in the stream: (rows,).
        eot_id: the id that ends a document, -1 if it is unknown.
    """

    tokens: Tokens
    located: Rows
    rows: slice
    real: Flags
    streams: Ints
    sequences: Ints
    eot_id: int


class RowColumn(Column):
    """A column that is made where shards are read.

    Attributes:
        token_bytes: bytes per token that the column adds to the messages of a worker.
    """

    token_bytes = 0

    @abstractmethod
    def add(self, batch: Batch, read: ReadRows) -> None:
        """Add the values of some rows to a batch."""


class SequenceIds(RowColumn):
    """The number of each row in its stream, in the order on disk: (rows,)."""

    name = "sequence_ids"

    def add(self, batch: Batch, read: ReadRows) -> None:
        """See `RowColumn`."""
        batch[self.name] = read.sequences


class StreamIds(RowColumn):
    """The stream of each row: (rows,)."""

    name = "stream_ids"

    def add(self, batch: Batch, read: ReadRows) -> None:
        """See `RowColumn`."""
        batch[self.name] = read.streams


class StreamDomains(RowColumn):
    """The domain of each row's stream: (rows,); see `TokenDomains` for domains of tokens.

    Attributes:
        domains: the domains by their numbers.
        of_streams: the number of each stream's domain.
    """

    name = "domain_ids"

    def __init__(self, names: Sequence[str]) -> None:
        """Number the domains in the order of the streams.

        Args:
            names: the name of each stream's domain.
        """
        self.domains = tuple(dict.fromkeys(names))
        self.of_streams: Ints = np.array([self.domains.index(name) for name in names])

    def add(self, batch: Batch, read: ReadRows) -> None:
        """See `RowColumn`."""
        batch[self.name] = self.of_streams[read.streams]


class StartsInside(RowColumn):
    """True for rows that begin in the middle of a document: (rows,)."""

    name, needs_ends = "starts_inside", True

    def add(self, batch: Batch, read: ReadRows) -> None:
        """See `RowColumn`."""
        batch[self.name] = read.located.start_inside(read.rows, read.eot_id) & read.real


class Segments:
    """The segments of the steps to which some boundaries belong.

    Attributes:
        boundaries: the boundaries of all steps.
        shape: rows per step and tokens per row.
        lengths: tokens of each segment, over all steps: (segments,).
    """

    def __init__(self, boundaries: Boundaries, *, shape: tuple[int, int], buffers: Buffers) -> None:
        """Compute once what all steps need.

        Args:
            boundaries: the boundaries of some steps.
            shape: rows per step and tokens per row.
            buffers: the buffers from which arrays are taken.
        """
        self.boundaries, self.shape, self.buffers = boundaries, shape, buffers
        self.lengths: Small = np.diff(boundaries.edges)
        tokens = shape[0] * shape[1]
        # The first offset of each step, then the end: (steps + 1,)
        steps = np.arange(0, boundaries.edges[-1] + 1, tokens)
        self._edge_steps = edge_steps = np.searchsorted(boundaries.edges, steps)
        # Lists, since they give single numbers faster than arrays.
        self._steps: list[int] = edge_steps.tolist()
        self._ignored_steps: list[int] = np.searchsorted(boundaries.ignored, steps).tolist()
        self._ignored = boundaries.ignored % tokens
        # First offset of each segment in its step, and the end of each step: (segments + steps,)
        counts = np.diff(edge_steps) + 1
        edges = boundaries.edges[ranges(edge_steps[:-1], counts)]
        self._edges = edges - np.repeat(steps[:-1].astype(np.int32), counts)
        self.last_targets = boundaries.last_targets.reshape(-1, shape[0])

    def of_step(self, step: int) -> slice:
        """Return the slice of the segments of one step."""
        return slice(self._steps[step], self._steps[step + 1])

    def edges(self, step: int) -> Small:
        """Return the first offset of each segment in a step, then the end: (segments + 1,)."""
        begin, end = self._steps[step], self._steps[step + 1]
        return self._edges[begin + step : end + step + 1]

    def ignored(self, step: int) -> Ints:
        """Return a step's offsets without a target, besides the last of each row: (ignored,)."""
        return self._ignored[self._ignored_steps[step] : self._ignored_steps[step + 1]]

    @cached_property
    def longest(self) -> list[int]:
        """Tokens of the longest segment of each step."""
        longest: list[int] = np.maximum.reduceat(self.lengths, self._edge_steps[:-1]).tolist()
        return longest

    @cached_property
    def numbers(self) -> Small:
        """The number of each segment in its row: (segments,)."""
        # The first segment of each row, then the number of segments: (rows + 1,)
        rows = np.arange(0, self.boundaries.edges[-1] + 1, self.shape[1])
        firsts = np.searchsorted(self.boundaries.edges, rows)
        numbers = np.arange(firsts[-1], dtype=np.int32)
        numbers -= np.repeat(firsts[:-1].astype(np.int32), np.diff(firsts))
        return numbers

    @cached_property
    def granules(self) -> Ints | None:
        """The position of the first token of each granule; None if segments are short.

        There is one granule more than a step fills: the last segment's may run beyond the step. The
        shape is (steps, granules).

            granules of 4 tokens, segments that begin at 0 and 6 of a step of 12: the granules begin
            at 0, 4 and 8, in segments 0, 0 and 1, so their positions are 0, 4 and 2; the granule
            from zero that is copied to 6 corrects the tokens from 6 on
        """
        edge_steps, steps = self._edge_steps, len(self._edge_steps) - 1
        if len(self.lengths) * _GRANULE >= self.boundaries.edges[-1]:
            return None
        size = self.shape[0] * self.shape[1]
        granules = ceil_div(size, _GRANULE) + 1
        step = np.repeat(np.arange(steps), np.diff(edge_steps))
        begins = self.boundaries.edges[:-1] - step * size
        # The number of segments that begin since the granule before: (steps * granules,)
        before = np.bincount(
            step * granules + ceil_div(begins, _GRANULE), minlength=steps * granules
        )
        segments = (np.cumsum(before) - 1).reshape(steps, granules)
        positions: Ints = np.arange(granules) * _GRANULE - begins[segments]
        return positions


class SegmentColumn(Column):
    """A column that is made from the segments of a step, where batches are handed over.

    Attributes:
        needs_next: True for columns that need the token after each row.
        filler: the value in rows that do not count; None to leave them.
    """

    per_token, needs_ends, needs_next = True, True, False
    filler: int | None = None

    @abstractmethod
    def of_step(self, segments: Segments, step: int, tokens: Ints) -> Any:
        """Return the values of one step.

        Args:
            segments: the segments of some steps.
            step: the number of the step.
            tokens: the rows of the step, contiguous in memory: (rows, length).
        """


class Targets(SegmentColumn):
    """The next token at each position; -100 in padding and at a shard's end: (rows, length)."""

    name, needs_next, filler = "targets", True, IGNORED

    def of_step(self, segments: Segments, step: int, tokens: Ints) -> Ints:
        """See `SegmentColumn`."""
        targets = segments.buffers.take(segments.shape, np.int64)
        flat = targets.reshape(-1)
        flat[:-1] = tokens.reshape(-1)[1:]  # one copy, wrong at the last offset of each row
        targets[:, -1] = segments.last_targets[step]
        ignored = segments.ignored(step)
        if ignored.size:
            flat[ignored] = IGNORED
        return targets


class LossMask(SegmentColumn):
    """True where `targets` holds a token, as Megatron's `loss_mask`: (rows, length)."""

    name, needs_next, filler = "loss_mask", True, False

    def of_step(self, segments: Segments, step: int, tokens: Ints) -> npt.NDArray[np.bool_]:
        """See `SegmentColumn`."""
        mask = np.ones(segments.shape, bool)
        mask[:, -1] = segments.last_targets[step] != IGNORED
        mask.reshape(-1)[segments.ignored(step)] = False
        return mask


class PositionIds(SegmentColumn):
    """The distance of each token from the start of its segment: (rows, length)."""

    name = "position_ids"

    def of_step(self, segments: Segments, step: int, tokens: Ints) -> Small:
        """See `SegmentColumn`."""
        rows, length = segments.shape
        starts = segments.edges(step)[:-1]
        if segments.granules is None:  # many short documents
            first = starts.repeat(segments.lengths[segments.of_step(step)])
            np.subtract(np.arange(rows * length, dtype=np.int32), first, out=first)
            return first.reshape(segments.shape)
        counting = _counting(length)
        positions: Small = counting[segments.granules[step]].view(np.int32)
        # In order of their starts: later granules correct what earlier ones wrote too far.
        windows(positions, _GRANULE)[starts] = counting[0]
        return positions[: rows * length].reshape(segments.shape)


class DocumentIds(SegmentColumn):
    """The number of each token's segment in its row: (rows, length)."""

    name = "document_ids"

    def of_step(self, segments: Segments, step: int, tokens: Ints) -> Small:
        """See `SegmentColumn`."""
        some = segments.of_step(step)
        return segments.numbers[some].repeat(segments.lengths[some]).reshape(segments.shape)


class CuSeqlens(SegmentColumn):
    """The first offset of each segment in the rows end to end, then the end: (segments + 1,)."""

    name, per_token = "cu_seqlens", False

    def of_step(self, segments: Segments, step: int, tokens: Ints) -> Small:
        """See `SegmentColumn`."""
        return segments.edges(step)


class MaxSeqlen(SegmentColumn):
    """Tokens of the longest segment of the batch: a number."""

    name, per_token = "max_seqlen", False

    def of_step(self, segments: Segments, step: int, tokens: Ints) -> int:
        """See `SegmentColumn`."""
        return segments.longest[step]


@lru_cache(maxsize=4)
def _counting(length: int) -> npt.NDArray[np.void]:
    """Return a granule per starting number, as many as a row of `length` tokens may need."""
    numbers = np.arange(length + 2 * _GRANULE, dtype=np.int32)
    numbers.flags.writeable = False
    return windows(numbers, _GRANULE)


# In the order in which a batch holds the columns.
COLUMNS: Final[dict[str, type[Column]]] = {
    column.name: column
    for column in (
        SequenceIds,
        StreamIds,
        StreamDomains,
        StartsInside,
        Targets,
        LossMask,
        PositionIds,
        DocumentIds,
        CuSeqlens,
        MaxSeqlen,
    )
}
