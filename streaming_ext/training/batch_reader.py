"""The batches of some steps as arrays: planned, located and gathered many steps at a time."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import UsageError
from streaming_ext.order.epoch_plan import Cursor, EpochPlan
from streaming_ext.reading.buffers import Buffers
from streaming_ext.reading.context import ContextSlice
from streaming_ext.reading.domains import TokenDomains
from streaming_ext.reading.masks import IGNORED, MASKS, Boundaries, Spread
from streaming_ext.reading.repeats import repeats_more
from streaming_ext.reading.rows import Rows, TokenSource

_NUMBERS: Final = ("sequence_ids", "stream_ids", "domain_ids")
EXTRAS: Final = (*MASKS, "starts_inside", *_NUMBERS)
PLANNED_ROWS: Final = 4096  # planned at once: the plan then costs little a batch
MASKED: Final = "masked"  # rows that a filter masked: for those who count, not for training
_A_ROW: Final = ("real", MASKED, *_NUMBERS, "starts_inside")  # arrays with one value a row

Batch = dict[str, Any]


class _Rows(NamedTuple):
    """What is known of rows: whether they count, stream and number of each: (rows,)."""

    real: Flags
    streams: Ints
    sequences: Ints

    def some(self, rows: slice) -> "_Rows":
        return _Rows(self.real[rows], self.streams[rows], self.sequences[rows])


class _Block(NamedTuple):
    """Steps that were found: their rows, what is known of them, and how many a step has."""

    located: Rows
    told: _Rows
    size: int

    def rows(self, first: int, steps: int) -> slice:
        return slice(first * self.size, (first + steps) * self.size)


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
        domains: TokenDomains | None = None,
        context: ContextSlice | None = None,
    ) -> None:
        """Choose what a batch holds besides its tokens.

        Args:
            plan: which sequences.
            source: where they are.
            sequence_length: tokens a sequence, the longest where lengths change.
            extras: any of `EXTRAS`.
            eot_id: the id that ends a document, None where unknown.
            predownload: sequences of this rank to run ahead with fetching.
            max_repeated_ngram: see `repeats_more`; None to look for nothing.
            domain_of_stream: number of each stream's domain.
            domains: of tokens, where streams are no domains.
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
        self._only_for_context = frozenset[str]()
        if context is not None and context.by_documents:
            self._only_for_context = frozenset({"cu_seqlens"}) - self.extras
            self._masks |= self._only_for_context
        self._buffers = Buffers()
        self._spread: Spread | None = None
        if self._masks:
            source.find_ends(self._eot)
        self._predownload = predownload
        self._domain_of_stream = np.array(domain_of_stream)
        self._domains = domains
        self._context = context
        self._max_repeated = max_repeated_ngram

    @property
    def filters(self) -> bool:
        """Whether rows may be masked."""
        return self._max_repeated is not None

    @property
    def token_bytes(self) -> int:
        """Bytes that raw batches hold for each token, boundaries left out."""
        of_domains = self._domains is not None and "domain_ids" in self.extras
        return self.source.dtype.itemsize + (4 if of_domains else 0)

    def batches(
        self, cursor: Cursor, blocks: Iterable[range], *, gathered: int | None
    ) -> Iterator[Batch]:
        """The batches of some steps, one after another.

        Args:
            cursor: where step 0 is.
            blocks: numbers of steps, each of one phase; each block is planned at once. Gone through
                twice, the second time ahead of the first.
            gathered: ids whose steps are gathered at once, where they are ready; one step at
                least. None for whole blocks, also where they must be waited for.

        Yields:
            raw batches, each of one step or more: what `split` makes batches of.
        """
        at = 0
        size = max((phase.batch_size for phase in self.plan.phases(cursor)), default=1)
        self.source.reader.start_process()
        ahead, upcoming = max(1, self._predownload // size), self._upcoming(cursor, blocks)
        with self.source.read_ahead(upcoming, self.length, ahead=ahead, now=lambda: at) as well:
            for steps, streams, sequences in self._planned(cursor, blocks):
                phase = self.plan.phase_of(cursor, steps[0])
                numbers, own_streams = sequences.reshape(-1), streams.reshape(-1)
                block = _Block(
                    located=self.source.locate(own_streams, numbers, phase.length),
                    told=_Rows(numbers >= 0, own_streams, numbers),
                    size=phase.batch_size,
                )
                together = len(steps) if gathered is None else phase.together(gathered)
                found = range(0)  # steps whose boundaries are known
                first = 0
                while first < len(steps):
                    well()
                    at = steps[first]
                    count = min(together, len(steps) - first)
                    if not (gathered is None or self._ready(block, first, count)):
                        count = 1
                    raw = self._gathered(block, first, count)
                    if self._masks:
                        if first not in found:
                            # At once for all that is left, where nothing must be waited for.
                            whole = self._ready(block, first, len(steps) - first)
                            found = range(first, len(steps) if whole else first + count)
                            marks = self._boundaries(block, found)
                        raw |= {"boundaries": marks, "step": first - found.start}
                    yield raw
                    first += count

    def read(self, stream: int, sequences: Ints) -> Batch:
        """Some sequences of one stream, by their numbers on disk, as a raw batch."""
        streams = np.full_like(sequences, stream)
        block = _Block(
            located=self.source.locate(streams, sequences, self.length),
            told=_Rows(sequences >= 0, streams, sequences),
            size=len(sequences),
        )
        self.source.reader.start_process()
        raw = self._gathered(block, 0, 1)
        if self._masks:
            raw |= {"boundaries": self._boundaries(block, range(1)), "step": 0}
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
            `tokens` (rows, length) int64, the extras, `real` where rows may be
            fillers, and `MASKED` where they are filtered.
        """
        kept = [name for name in _A_ROW if name in raw]
        spread = self._spread_of(raw, rows) if self._masks else None
        for step, first in enumerate(range(0, len(raw["tokens"]), rows), raw.get("step", 0)):
            # No name here holds a batch, so that its memory can come back with the next one.
            yield self._one_step(raw, slice(first, first + rows), kept, spread, step)

    def _spread_of(self, raw: Batch, rows: int) -> Spread:
        """What spreads the boundaries of a raw batch; the same for all that have the same."""
        boundaries = raw["boundaries"]
        shape = (rows, raw["tokens"].shape[1])
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
        if self._context is not None:
            batch = self._context.cut(batch)
            for name in self._only_for_context:
                del batch[name]
        return batch

    def _planned(
        self, cursor: Cursor, blocks: Iterable[range]
    ) -> Iterator[tuple[range, Ints, Ints]]:
        """Blocks of steps with their streams and sequences: (steps, batch_size) each."""
        for block in blocks:
            yield block, *self.plan.sequences(cursor, np.array(block, np.int64))

    def _upcoming(
        self, cursor: Cursor, blocks: Iterable[range]
    ) -> Iterator[tuple[range, Ints, Ints]]:
        """Blocks of steps as `_planned`, in sequences of the longest length."""
        for steps, streams, sequences in self._planned(cursor, blocks):
            per_position = self.length // self.plan.phase_of(cursor, steps[0]).length
            yield steps, streams, sequences if per_position == 1 else sequences // per_position

    def _gathered(self, block: _Block, first: int, steps: int) -> Batch:
        """The raw batch of some steps, of which no more are held at once than may be."""
        parts = []
        at, end = first, first + steps
        while at < end:
            together = self._within_limit(block, at, end - at)
            rows = block.rows(at, together)
            parts.append(self._batch(block.located, rows, block.told.some(rows)))
            at += together
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _within_limit(self, block: _Block, first: int, steps: int) -> int:
        """How many of some steps are held at once, one at least."""
        limit = self.source.hold_limit
        while limit is not None and steps > 1:
            if block.located.cost(block.rows(first, steps)) <= limit:
                break
            steps //= 2
        return steps

    def _ready(self, block: _Block, first: int, steps: int) -> bool:
        return block.located.ready(block.rows(first, steps))

    def _boundaries(self, block: _Block, steps: range) -> Boundaries:
        rows = block.rows(steps.start, len(steps))
        return block.located.boundaries(
            rows, real=block.told.real[rows], targets="targets" in self._masks
        )

    def _batch(self, located: Rows, rows: slice, told: _Rows) -> Batch:
        tokens = located.tokens(rows)
        batch: Batch = {"tokens": tokens}
        chosen = told.real
        if not self.plan.drop_last:
            if not chosen.all():
                tokens[~chosen] = max(0, self._eot)
            batch["real"] = chosen
        if self._max_repeated is not None:
            repeats = repeats_more(tokens, self._max_repeated, eot_id=self._eot)
            batch["real"], batch[MASKED] = chosen & ~repeats, chosen & repeats
        if "sequence_ids" in self.extras:
            batch["sequence_ids"] = told.sequences
        if "stream_ids" in self.extras:
            batch["stream_ids"] = told.streams
        if "domain_ids" in self.extras:
            batch["domain_ids"] = self._domain_of_stream[told.streams]
            if self._domains is not None:
                batch["domain_ids"] = self._domains.of_tokens(
                    located.spans(rows), length=tokens.shape[1], real=told.real
                )
        if "starts_inside" in self.extras:
            batch["starts_inside"] = located.start_inside(rows, self._eot) & chosen
        return batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Steps that are alike, and how many of them a block holds."""

    steps: range
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """The blocks of one worker, which takes each `num_workers`-th; none is of two runs.

    Attributes:
        runs: the steps of all workers.
        worker: number of this worker.
        num_workers: how many share the blocks.
    """

    runs: Sequence[Run]
    worker: int = 0
    num_workers: int = 1

    def __iter__(self) -> Iterator[range]:
        """Each block as a range of steps."""
        before = 0  # blocks of all workers
        for run in self.runs:
            count = -(-len(run.steps) // run.size)
            for number in range((self.worker - before) % self.num_workers, count, self.num_workers):
                yield run.steps[number * run.size : (number + 1) * run.size]
            before += count


@dataclass(frozen=True, kw_only=True, slots=True)
class StepsInTurn:
    """The steps of one worker where they are dealt out singly, as a plain DataLoader collects them.

    Attributes:
        steps: of all workers.
        size: steps a block.
        worker: number of this worker.
        num_workers: how many share the steps.
        first: steps of this worker to leave out at the beginning.
    """

    steps: int
    size: int
    worker: int
    num_workers: int
    first: int

    @property
    def own_steps(self) -> int:
        """Steps of this worker, with those left out."""
        return len(range(self.worker, self.steps, self.num_workers))

    def __iter__(self) -> Iterator[range]:
        """Each block as a range of steps."""
        own = range(self.worker, self.steps, self.num_workers)[self.first :]
        for begin in range(0, len(own), self.size):
            yield own[begin : begin + self.size]
