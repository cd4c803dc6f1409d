"""The batches of some steps as arrays: planned, located and copied many steps at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import UsageError
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.state import Cursor
from streaming_ext.order.steps import Phase
from streaming_ext.reading.boundaries import IGNORED, Boundaries
from streaming_ext.reading.buffers import Buffers
from streaming_ext.reading.prefetch import read_ahead
from streaming_ext.reading.source import Rows, TokenSource
from streaming_ext.training.arguments import NUMBERS, BatchContents
from streaming_ext.training.features.context import ContextSlice
from streaming_ext.training.features.domains import TokenDomains
from streaming_ext.training.features.masks import MASKS, Spread
from streaming_ext.training.features.repeats import repeats_more

PLANNED_ROWS: Final = 4096  # planned at once: the plan then costs little a batch
MASKED: Final = "masked"  # rows that a filter masked: for those who count, not for training
_A_ROW: Final = ("real", MASKED, *NUMBERS, "starts_inside")  # arrays with one value a row

Batch = dict[str, Any]


class _Block(NamedTuple):
    """Located steps: their rows, and how many rows a step has.

    Attributes:
        located: the rows.
        real: False for those that fill up a step: (rows,).
        streams, sequences: of each row: (rows,).
        size: rows a step.
    """

    located: Rows
    real: Flags
    streams: Ints
    sequences: Ints
    size: int

    def rows(self, first: int, steps: int) -> slice:
        return slice(first * self.size, (first + steps) * self.size)

    def ready(self, first: int, steps: int) -> bool:
        """Whether some steps can be read without waiting."""
        return self.located.ready(self.rows(first, steps))


@dataclass(kw_only=True, eq=False)
class BatchReader:
    """Makes the batches of one rank from a plan and a source of tokens.

    Attributes:
        plan: which sequences.
        source: where they are.
        contents: what a batch holds besides its tokens.
        eot_id: the id that ends a document, None if unknown.
        predownload: sequences of this rank to run ahead with fetching.
        max_repeated_ngram: see `repeats_more`; None for no filter.
        domain_of_stream: number of each stream's domain.
        domains: of tokens, unless streams are domains.
        context: which part of each row; None for all of it.
    """

    plan: EpochPlan
    source: TokenSource
    contents: BatchContents
    eot_id: int | None
    predownload: int
    max_repeated_ngram: int | None
    domain_of_stream: Ints
    domains: TokenDomains | None
    context: ContextSlice | None

    def __post_init__(self) -> None:
        """Find the ends of documents, if masks need them.

        Raises:
            UsageError: the id that ends a document is needed and unknown.
        """
        self.extras = frozenset(self.contents.extras)
        if self.eot_id is None and self.extras - set(NUMBERS):
            raise UsageError(
                f"extras={sorted(self.extras)} need the id that ends a document, which this "
                "dataset does not say. Pass eot_id=..., or leave them out."
            )
        self._eot = -1 if self.eot_id is None else self.eot_id
        self._masks = self.extras & set(MASKS)
        if self.context is not None and self.context.by_documents:
            self._masks |= {"cu_seqlens"}  # which the context slice needs
        self._buffers = Buffers()
        self._spread: Spread | None = None
        if self._masks:
            self.source.find_ends(self._eot)

    @property
    def token_bytes(self) -> int:
        """Bytes that raw batches hold for each token, boundaries left out."""
        of_domains = self.domains is not None and "domain_ids" in self.extras
        return self.source.reader.dtype.itemsize + (4 if of_domains else 0)

    def batches(
        self,
        cursor: Cursor,
        steps: Sequence[tuple[range, int]],
        *,
        ids_at_once: int | None,
        worker: int = 0,
        num_workers: int = 1,
    ) -> Iterator[Batch]:
        """The batches of some steps, one after another.

        Args:
            cursor: where step 0 is.
            steps: ranges of steps of one phase each, and how many are planned at once.
            ids_at_once: whose steps are copied together if they are ready; one step at least. None
                for all that are planned at once, even if they must be waited for.
            worker: number of this worker, which takes each `num_workers`-th block of steps.
            num_workers: that divide the blocks among them.

        Yields:
            raw batches, each of one step or more: what `split` makes batches of.
        """
        now = 0
        size = max((phase.batch_size for phase in self.plan.phases(cursor)), default=1)
        self.source.reader.start_process()

        def planned() -> Iterator[tuple[range, Phase, Ints, Ints]]:
            """Blocks with their streams and sequences: (steps, batch_size) each."""
            for block in blocks_of(steps, worker=worker, num_workers=num_workers):
                phase = self.plan.phase_of(cursor, block[0])
                yield block, phase, *self.plan.sequences(cursor, np.array(block, np.int64))

        upcoming = (
            (block, streams, sequences // phase.per_position)  # of the longest length
            for block, phase, streams, sequences in planned()
        )
        with read_ahead(
            self.source, upcoming, ahead=max(1, self.predownload // size), now=lambda: now
        ) as require_well:
            for numbers, phase, streams, sequences in planned():
                block = self._located(streams, sequences, phase.length)
                together = len(numbers) if ids_at_once is None else phase.steps_at_once(ids_at_once)
                marked = range(0)  # steps whose boundaries are known
                first = 0
                while left := len(numbers) - first:
                    require_well()
                    now = numbers[first]
                    count = min(together, left)
                    if not (ids_at_once is None or block.ready(first, count)):
                        count = 1
                    raw = self._batch(block, block.rows(first, count))
                    if self._masks:
                        if first not in marked:
                            # All that is left at once, if nothing must be waited for.
                            known = left if block.ready(first, left) else count
                            marked = range(first, first + known)
                            boundaries = self._boundaries(block, first, known)
                        raw |= {"boundaries": boundaries, "step": first - marked.start}
                    yield raw
                    first += count

    def read(self, stream: int, sequences: Ints) -> Batch:
        """Some sequences of one stream, by their numbers on disk, as a raw batch."""
        self.source.reader.start_process()
        numbers = sequences[None]
        block = self._located(np.full_like(numbers, stream), numbers, self.plan.length)
        raw = self._batch(block, block.rows(0, 1))
        if self._masks:
            raw |= {"boundaries": self._boundaries(block, 0, 1), "step": 0}
        return raw

    def finish(self, raw: Batch) -> Batch:
        """The one batch of a raw batch of one step; see `split`."""
        (batch,) = self.split(raw, rows=len(raw["tokens"]))
        batch.pop(MASKED, None)
        return batch

    def split(self, raw: Batch, *, rows: int) -> Iterator[Batch]:
        """The batches of a raw batch, each of `rows` rows.

        Apart from reading, since arrays of one value a token cost more to send between processes
        than to make.

        Yields:
            `tokens` (rows, length) int64, the extras, `real` if rows may be
            fillers, and `MASKED` if they are filtered.
        """
        kept = [name for name in _A_ROW if name in raw]
        spread = self._spread_of(raw, rows) if self._masks else None
        for step, first in enumerate(range(0, len(raw["tokens"]), rows), raw.get("step", 0)):
            # No name here holds a batch, so that the next one may have its memory.
            yield self._one_step(raw, slice(first, first + rows), kept, spread, step)

    def _spread_of(self, raw: Batch, rows: int) -> Spread:
        """What spreads the boundaries of a raw batch; the same for all that have the same."""
        boundaries, shape = raw["boundaries"], (rows, raw["tokens"].shape[1])
        spread = self._spread
        if spread is None or spread.boundaries is not boundaries or spread.shape != shape:
            spread = Spread(boundaries, shape=shape, names=self._masks, buffers=self._buffers)
            self._spread = spread
        return spread

    def _one_step(
        self, raw: Batch, rows: slice, kept: Sequence[str], spread: Spread | None, step: int
    ) -> Batch:
        ids = raw["tokens"][rows]
        tokens = self._buffers.take(ids.shape, np.int64)
        np.copyto(tokens, ids)
        batch: Batch = {"tokens": tokens}
        for name in kept:
            batch[name] = raw[name][rows]
        if spread is not None:
            batch |= spread.of_step(step, tokens)
            if "real" in batch and "targets" in batch:
                batch["targets"][~batch["real"]] = IGNORED
        if self.context is not None:
            batch = self.context.cut(batch)
            for name in self._masks - self.extras:
                del batch[name]
        return batch

    def _located(self, streams: Ints, sequences: Ints, length: int) -> _Block:
        """Steps whose streams and sequences are known: (steps, rows of a step) each."""
        size = streams.shape[1]
        streams, sequences = streams.reshape(-1), sequences.reshape(-1)
        located = self.source.locate(streams, sequences, length)
        return _Block(located, sequences >= 0, streams, sequences, size)

    def _boundaries(self, block: _Block, first: int, steps: int) -> Boundaries:
        rows = block.rows(first, steps)
        return block.located.boundaries(
            rows, real=block.real[rows], targets="targets" in self._masks
        )

    def _batch(self, block: _Block, rows: slice) -> Batch:
        located, real, streams = block.located, block.real[rows], block.streams[rows]
        tokens = located.tokens(rows)
        batch: Batch = {"tokens": tokens}
        if not self.plan.drop_last:
            tokens[~real] = max(0, self._eot)
            batch["real"] = real
        if self.max_repeated_ngram is not None:
            repeats = repeats_more(tokens, self.max_repeated_ngram, eot_id=self._eot)
            batch["real"], batch[MASKED] = real & ~repeats, real & repeats
        if "sequence_ids" in self.extras:
            batch["sequence_ids"] = block.sequences[rows]
        if "stream_ids" in self.extras:
            batch["stream_ids"] = streams
        if "domain_ids" in self.extras:
            batch["domain_ids"] = (
                self.domain_of_stream[streams]
                if self.domains is None
                else self.domains.of_tokens(located.spans(rows), length=tokens.shape[1], real=real)
            )
        if "starts_inside" in self.extras:
            batch["starts_inside"] = located.start_inside(rows, self._eot) & real
        return batch


def blocks_of(
    steps: Sequence[tuple[range, int]], *, worker: int = 0, num_workers: int = 1
) -> Iterator[range]:
    """The blocks of one worker, which takes each `num_workers`-th.

    Args:
        steps: of all workers: ranges of steps of one size, and how many of them a block holds.
        worker: number of this worker.
        num_workers: that divide the blocks among them.
    """
    blocks = (
        own[first : first + size] for own, size in steps for first in range(0, len(own), size)
    )
    return islice(blocks, worker, None, num_workers)
