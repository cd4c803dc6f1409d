"""The batches of some steps as arrays: planned, located and copied many steps at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import UsageError
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.state import Cursor
from streaming_ext.order.steps import Phase
from streaming_ext.reading.boundaries import Boundaries
from streaming_ext.reading.buffers import Buffers
from streaming_ext.reading.prefetch import Prefetcher
from streaming_ext.reading.source import Rows, TokenSource
from streaming_ext.training.columns import (
    MASKED,
    Batch,
    Column,
    CuSeqlens,
    ReadRows,
    RowColumn,
    SegmentColumn,
    Segments,
)
from streaming_ext.training.workers import pinned

if TYPE_CHECKING:
    from streaming_ext.training.features.context import ContextSlice

PLANNED_ROWS: Final = 4096  # planned at once, so that the plan costs little per batch
_NO_ROWS: Final = {
    "tokens",
    "boundaries",
    "step",
}  # the other entries of a raw batch are columns with a value per row


class _Block(NamedTuple):
    """Steps whose rows are located.

    Attributes:
        located: the rows of all steps.
        real: False for rows that fill up a step: (rows,).
        streams, sequences: the stream and the number of each row: (rows,).
        size: rows per step.
    """

    located: Rows
    real: Flags
    streams: Ints
    sequences: Ints
    size: int

    def rows(self, first: int, steps: int) -> slice:
        return slice(first * self.size, (first + steps) * self.size)

    def ready(self, first: int, steps: int) -> bool:
        """Return whether the given steps can be read without waiting."""
        return self.located.ready(self.rows(first, steps))


@dataclass(kw_only=True, eq=False)
class BatchReader:
    """The batches of one rank, made from a plan and a source of tokens.

    Attributes:
        plan: the sequences of each step.
        source: the source of the tokens.
        columns: the contents of a batch besides its tokens.
        eot_id: the id that ends a document, None if unknown.
        predownload: sequences that this rank fetches ahead.
        context: the part of each row that this rank gets; None for all of it.
    """

    plan: EpochPlan
    source: TokenSource
    columns: Sequence[Column]
    eot_id: int | None
    predownload: int
    context: "ContextSlice | None"

    def __post_init__(self) -> None:
        """Find the ends of documents, if columns need them.

        Raises:
            UsageError: the id that ends a document is needed and unknown.
        """
        self.names = {column.name for column in self.columns}
        needy = sorted(column.name for column in self.columns if column.needs_ends)
        if self.eot_id is None and needy:
            raise UsageError(
                f"extras={needy} need the id that ends a document, which this dataset does not "
                "say. Pass eot_id=..., or leave them out."
            )
        self._eot = -1 if self.eot_id is None else self.eot_id
        self._of_rows = [each for each in self.columns if isinstance(each, RowColumn)]
        self._masks = [each for each in self.columns if isinstance(each, SegmentColumn)]
        by_documents = self.context is not None and self.context.layout == "documents"
        # The context slice may need a column that the user did not request.
        self._hides = by_documents and CuSeqlens.name not in self.names
        if self._hides:
            self._masks.append(CuSeqlens())
        self._divided = {"tokens", *(each.name for each in self.columns if each.per_token)}
        self._buffers = Buffers()
        self._segments: Segments | None = None
        if self._masks:
            self.source.find_ends(self._eot)

    @property
    def token_bytes(self) -> int:
        """Bytes per token of raw batches, without boundaries."""
        own = sum(column.token_bytes for column in self._of_rows)
        return self.source.reader.dtype.itemsize + own

    def batches(
        self,
        cursor: Cursor,
        steps: Sequence[tuple[range, int]],
        *,
        ids_at_once: int | None,
        worker: int = 0,
        num_workers: int = 1,
    ) -> Iterator[Batch]:
        """Yield the batches of some steps, one after another.

        Args:
            cursor: the position of step 0.
            steps: ranges of steps of one phase each, with the number of steps to plan at once.
            ids_at_once: ids that are copied together if their shards are ready, at least one step;
                None to copy all steps of a plan together, even if they must be waited for.
            worker: the number of this worker, which takes every `num_workers`-th block of steps.
            num_workers: the number of workers that divide the blocks.

        Yields:
            raw batches of one or more steps, which `split` makes into batches.
        """
        now = 0
        size = max((phase.batch_size for phase in self.plan.phases(cursor)), default=1)
        self.source.reader.start_process()

        def planned() -> Iterator[tuple[range, Phase, Ints, Ints]]:
            """Yield blocks with their streams and sequences: (steps, batch_size) each."""
            for block in blocks_of(steps, worker=worker, num_workers=num_workers):
                phase = self.plan.phase_of(cursor, block[0])
                yield block, phase, *self.plan.sequences(cursor, np.array(block, np.int64))

        upcoming = (
            (block, streams, sequences // phase.per_position)  # numbered by the longest length
            for block, phase, streams, sequences in planned()
        )
        with Prefetcher(
            self.source, upcoming, ahead=max(1, self.predownload // size), now=lambda: now
        ) as prefetcher:
            for numbers, phase, streams, sequences in planned():
                block = self._located(streams, sequences, phase.length)
                together = len(numbers) if ids_at_once is None else phase.steps_at_once(ids_at_once)
                marked = range(0)  # steps whose boundaries are known
                first = 0
                while left := len(numbers) - first:
                    prefetcher.require_well()
                    now = numbers[first]
                    count = min(together, left)
                    if not (ids_at_once is None or block.ready(first, count)):
                        count = 1
                    raw = self._batch(block, block.rows(first, count))
                    if self._masks:
                        if first not in marked:
                            # All remaining steps at once, if their shards are ready.
                            known = left if block.ready(first, left) else count
                            marked = range(first, first + known)
                            boundaries = self._boundaries(block, first, known)
                        raw |= {"boundaries": boundaries, "step": first - marked.start}
                    yield raw
                    first += count

    def read(self, stream: int, sequences: Ints) -> Batch:
        """Read some sequences of one stream, by their numbers on disk, as a raw batch."""
        self.source.reader.start_process()
        numbers = sequences[None]
        block = self._located(np.full_like(numbers, stream), numbers, self.plan.length)
        raw = self._batch(block, block.rows(0, 1))
        if self._masks:
            raw |= {"boundaries": self._boundaries(block, 0, 1), "step": 0}
        return raw

    def finish(self, raw: Batch) -> Batch:
        """Make the batch of a raw batch of one step; see `split`."""
        (batch,) = self.split(raw, rows=len(raw["tokens"]))
        batch.pop(MASKED, None)
        return batch

    def split(self, raw: Batch, *, rows: int) -> Iterator[Batch]:
        """Make batches of `rows` rows each from a raw batch.

        This is separate from reading: arrays with one value per token cost more to send between
        processes than to make.

        Yields:
            `tokens` (rows, length) int64, the extras, `real` if rows may be
            fillers, and `MASKED` if they are filtered.
        """
        kept = [name for name in raw if name not in _NO_ROWS]
        segments = self._segments_of(raw, rows) if self._masks else None
        for step, first in enumerate(range(0, len(raw["tokens"]), rows), raw.get("step", 0)):
            # No name here holds a batch, so that the next one may reuse its memory.
            yield self._one_step(raw, slice(first, first + rows), kept, segments, step)

    def _segments_of(self, raw: Batch, rows: int) -> Segments:
        """Return the segments of a raw batch; batches of the same boundaries share them."""
        boundaries, shape = raw["boundaries"], (rows, raw["tokens"].shape[1])
        segments = self._segments
        if segments is None or segments.boundaries is not boundaries or segments.shape != shape:
            segments = Segments(boundaries, shape=shape, buffers=self._buffers)
            self._segments = segments
        return segments

    def _one_step(
        self, raw: Batch, rows: slice, kept: Sequence[str], segments: Segments | None, step: int
    ) -> Batch:
        ids = raw["tokens"][rows]
        tokens = self._buffers.take(ids.shape, np.int64)
        np.copyto(tokens, ids)
        batch: Batch = {"tokens": tokens}
        for name in kept:
            batch[name] = raw[name][rows]
        if segments is not None:
            for column in self._masks:
                values = batch[column.name] = column.of_step(segments, step, tokens)
                if column.filler is not None and "real" in batch:
                    values[~batch["real"]] = column.filler
        if self.context is not None:
            batch = self.context.cut(batch, self._divided)
            if self._hides:
                del batch[CuSeqlens.name]
        return batch

    def _located(self, streams: Ints, sequences: Ints, length: int) -> _Block:
        """Locate the rows of steps, given streams and sequences: (steps, rows of a step) each."""
        size = streams.shape[1]
        streams, sequences = streams.reshape(-1), sequences.reshape(-1)
        located = self.source.locate(streams, sequences, length)
        return _Block(located, sequences >= 0, streams, sequences, size)

    def _boundaries(self, block: _Block, first: int, steps: int) -> Boundaries:
        rows = block.rows(first, steps)
        return block.located.boundaries(
            rows, real=block.real[rows], targets=any(each.needs_next for each in self._masks)
        )

    def _batch(self, block: _Block, rows: slice) -> Batch:
        located, real = block.located, block.real[rows]
        streams, sequences = block.streams[rows], block.sequences[rows]
        tokens = located.tokens(rows)
        batch: Batch = {"tokens": tokens}
        if not self.plan.drop_last:
            tokens[~real] = max(0, self._eot)
            batch["real"] = real
        for column in self._of_rows:
            column.add(batch, ReadRows(tokens, located, rows, real, streams, sequences, self._eot))
        return batch


def blocks_of(
    steps: Sequence[tuple[range, int]], *, worker: int = 0, num_workers: int = 1
) -> Iterator[range]:
    """Yield the blocks of one worker, which takes every `num_workers`-th block.

    Args:
        steps: ranges of steps of one size, over all workers, and the steps per block.
        worker: the number of this worker.
        num_workers: the number of workers that divide the blocks.
    """
    blocks = (
        own[first : first + size] for own, size in steps for first in range(0, len(own), size)
    )
    return islice(blocks, worker, None, num_workers)


def to_tensors(batch: Batch, *, pin: bool) -> dict[str, Any]:
    """Convert a batch to tensors; `max_seqlen` stays a number."""
    result = {
        name: values if name == "max_seqlen" else torch.from_numpy(values)
        for name, values in batch.items()
    }
    return pinned(result) if pin else result


def samples_of(batch: Batch) -> list[dict[str, Any]]:
    """Divide a batch into dictionaries of tensors, one per row."""
    tensors = to_tensors(batch, pin=False)
    return [
        {name: values[row] for name, values in tensors.items()}
        for row in range(len(batch["tokens"]))
    ]
