"""The batches of some steps as arrays: planned, located and gathered many steps at a time."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from streaming_ext.batches.buffers import Buffers
from streaming_ext.batches.context import ContextSlice
from streaming_ext.batches.masks import IGNORED, MASKS, Boundaries
from streaming_ext.batches.repeats import repeats_more
from streaming_ext.batches.spread import Spread
from streaming_ext.batches.token_source import Flags, ReadAhead, TokenRows, TokenSource
from streaming_ext.errors import UsageError
from streaming_ext.sampler.epoch_plan import Cursor, EpochPlan
from streaming_ext.sampler.order import Ints

_NUMBERS: Final = ("sequence_ids", "stream_ids", "domain_ids")
EXTRAS: Final = (*MASKS, "starts_inside", *_NUMBERS)
PLANNED_ROWS: Final = 4096  # planned at once: the plan then costs little a batch
_A_ROW: Final = ("real", *_NUMBERS, "starts_inside")  # arrays with one value a row

Batch = dict[str, Any]


class _Rows(NamedTuple):
    """What is known of rows: whether they count, stream and number of each: (rows,)."""

    real: Flags
    streams: Ints
    sequences: Ints

    def some(self, rows: slice) -> "_Rows":
        return _Rows(self.real[rows], self.streams[rows], self.sequences[rows])


class BatchReader:
    """Makes the batches of one rank from a plan and a source of tokens."""

    def __init__(
        self,
        plan: EpochPlan,
        source: TokenSource,
        *,
        sequence_length: int,
        extras: Collection[str],
        eot_id: int | None,
        predownload: int,
        max_repeated_ngram: int | None = None,
        domain_of_stream: Sequence[int] = (0,),
        context: ContextSlice | None = None,
    ) -> None:
        """Choose what a batch holds besides its tokens.

        Args:
            plan: which sequences.
            source: where they are.
            sequence_length: tokens a sequence.
            extras: any of `EXTRAS`.
            eot_id: the id that ends a document, None where unknown.
            predownload: sequences of this rank to run ahead with fetching.
            max_repeated_ngram: see `repeats_more`; None to look for nothing.
            domain_of_stream: number of each stream's domain.
            context: which part of each row; None for all of it.
        """
        if unknown := sorted(set(extras) - set(EXTRAS)):
            raise UsageError(f"`extras` may name {', '.join(EXTRAS)}; got {', '.join(unknown)}.")
        if eot_id is None and set(extras) - set(_NUMBERS):
            raise UsageError(
                f"extras={sorted(extras)} need the id that ends a document, which this dataset "
                "does not say. Pass eot_id=..., or leave them out."
            )
        self.plan = plan
        self.source = source
        self.length = sequence_length
        self.extras = frozenset(extras)
        self._eot = -1 if eot_id is None else eot_id
        self._masks = self.extras & set(MASKS)
        self._buffers = Buffers()
        self._spread: Spread | None = None
        if self._masks:
            source.find_ends(self._eot)
        self._predownload = predownload
        self._domain_of_stream = np.array(domain_of_stream)
        self._context = context
        self._max_repeated = max_repeated_ngram

    def batches(
        self, cursor: Cursor, blocks: Iterable[range], *, together: int, whole: bool = False
    ) -> Iterator[Batch]:
        """The batches of some steps, one after another.

        Args:
            cursor: where step 0 is.
            blocks: numbers of steps; each block is planned at once. Gone through twice, the
                second time ahead of the first.
            together: steps whose rows are gathered at once, where they are ready.
            whole: gather as many also where rows must be waited for.

        Yields:
            raw batches, each of one step or more: what `split` makes batches of.
        """
        at = 0
        size = self.plan.slices.batch_size
        self.source.start_process()
        ahead = ReadAhead(max(1, self._predownload // size), lambda: at)
        with self.source.read_ahead(self._planned(cursor, blocks), self.length, ahead):
            for block, streams, sequences in self._planned(cursor, blocks):
                numbers = sequences.reshape(-1)
                located = self.source.locate(streams.reshape(-1), numbers, self.length)
                real = numbers >= 0
                told = _Rows(real, streams.reshape(-1), numbers)
                found = range(0)  # steps whose boundaries are known
                first = 0
                while first < len(block):
                    at = block[first]
                    steps = min(together, len(block) - first)
                    if not (whole or self._ready(located, first, steps)):
                        steps = 1
                    raw = self._gathered(located, first, steps, told)
                    if self._masks:
                        if first not in found:
                            # At once for all that is left, where nothing must be waited for.
                            found = self._known(located, first, steps, len(block))
                            marks = self._boundaries(located, found, real, size)
                        raw |= {"boundaries": marks, "step": first - found.start}
                    yield raw
                    first += steps

    def read(self, stream: int, sequences: Ints) -> Batch:
        """Some sequences of one stream, by their numbers on disk, as a raw batch."""
        streams = np.full_like(sequences, stream)
        located = self.source.locate(streams, sequences, self.length)
        real = sequences >= 0
        rows = slice(0, len(sequences))
        self.source.start_process()
        with located.held(rows):
            raw = self._batch(located, rows, _Rows(real, streams, sequences))
        if self._masks:
            raw["boundaries"] = self._boundaries(located, range(1), real, len(sequences))
            raw["step"] = 0
        return raw

    def finish(self, raw: Batch) -> Batch:
        """The one batch of a raw batch of one step; see `split`."""
        (batch,) = self.split(raw, rows=len(raw["tokens"]))
        return batch

    def split(self, raw: Batch, *, rows: int) -> Iterator[Batch]:
        """The batches of a raw batch, each of `rows` rows.

        Apart from reading, since arrays of one value a token cost more to send between processes
        than to make.

        Yields:
            `tokens` (rows, sequence_length) int64, the extras, and `real` where rows may be
            fillers.
        """
        kept = [name for name in _A_ROW if name in raw]
        spread = self._spread_of(raw, rows) if self._masks else None
        for step, first in enumerate(range(0, len(raw["tokens"]), rows)):
            chosen = slice(first, first + rows)
            # No name here holds a batch, so that its memory can come back with the next one.
            yield self._one_step(raw, chosen, kept, spread, raw.get("step", 0) + step)

    def _spread_of(self, raw: Batch, rows: int) -> Spread:
        """What spreads the boundaries of a raw batch; the same for all that have the same."""
        boundaries = raw["boundaries"]
        shape = (rows, self.length)
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
        return batch if self._context is None else self._context.cut(batch)

    def _planned(
        self, cursor: Cursor, blocks: Iterable[range]
    ) -> Iterator[tuple[range, Ints, Ints]]:
        """Blocks of steps with their streams and sequences: (steps, batch_size) each."""
        for block in blocks:
            yield block, *self.plan.sequences(cursor, np.array(block, np.int64))

    def _gathered(self, located: TokenRows, first: int, steps: int, told: _Rows) -> Batch:
        """The raw batch of some steps, of which no more are held at once than may be."""
        size = self.plan.slices.batch_size
        parts = []
        while steps:
            together = self._within_limit(located, first, steps)
            rows = slice(first * size, (first + together) * size)
            with located.held(rows):
                parts.append(self._batch(located, rows, told.some(rows)))
            first, steps = first + together, steps - together
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _within_limit(self, located: TokenRows, first: int, steps: int) -> int:
        """How many of some steps are held at once, one at least."""
        size, limit = self.plan.slices.batch_size, self.source.hold_limit
        while limit is not None and steps > 1:
            if located.cost(slice(first * size, (first + steps) * size)) <= limit:
                break
            steps //= 2
        return steps

    def _ready(self, located: TokenRows, first: int, steps: int) -> bool:
        size = self.plan.slices.batch_size
        return located.ready(slice(first * size, (first + steps) * size))

    def _known(self, located: TokenRows, first: int, steps: int, end: int) -> range:
        """The steps whose boundaries are found together."""
        whole = self.source.hold_limit is None and self._ready(located, first, end - first)
        return range(first, end if whole else first + steps)

    def _boundaries(self, located: TokenRows, steps: range, real: Flags, size: int) -> Boundaries:
        rows = slice(steps.start * size, steps.stop * size)
        with located.held(rows):
            return located.boundaries(rows, steps=len(steps), real=real[rows],
                                      targets="targets" in self._masks)  # fmt: skip

    def _batch(self, located: TokenRows, rows: slice, told: _Rows) -> Batch:
        tokens = located.tokens(rows)
        batch: Batch = {"tokens": tokens}
        chosen = told.real
        if not self.plan.drop_last:
            if not chosen.all():
                tokens[~chosen] = max(0, self._eot)
            batch["real"] = chosen
        if self._max_repeated is not None:
            batch["real"] = chosen & ~repeats_more(tokens, self._max_repeated, eot_id=self._eot)
        if "sequence_ids" in self.extras:
            batch["sequence_ids"] = told.sequences
        if "stream_ids" in self.extras:
            batch["stream_ids"] = told.streams
        if "domain_ids" in self.extras:
            batch["domain_ids"] = self._domain_of_stream[told.streams]
        if "starts_inside" in self.extras:
            batch["starts_inside"] = located.start_inside(rows, self._eot) & chosen
        return batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """The steps of one worker, in blocks.

    Attributes:
        steps: of all workers.
        size: steps a block.
        worker: number of this worker.
        num_workers: how many share the steps.
        cyclic: deal out single steps in turn, as a plain DataLoader collects them, or blocks.
        first: steps of this worker to leave out at the beginning; only with `cyclic`.
    """

    steps: int
    size: int
    worker: int = 0
    num_workers: int = 1
    cyclic: bool = False
    first: int = 0

    @property
    def own_steps(self) -> int:
        """Steps of this worker, with those left out; only with `cyclic`."""
        return len(range(self.worker, self.steps, self.num_workers))

    def __iter__(self) -> Iterator[range]:
        """Each block as a range of steps."""
        if self.cyclic:
            own = range(self.worker, self.steps, self.num_workers)[self.first :]
            for begin in range(0, len(own), self.size):
                yield own[begin : begin + self.size]
            return
        for begin in range(self.worker * self.size, self.steps, self.num_workers * self.size):
            yield range(begin, min(begin + self.size, self.steps))
