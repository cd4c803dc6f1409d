"""The batches of some steps as arrays: planned, located and gathered many steps at a time."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.batches.buffers import Buffers
from streaming_ext.batches.masks import IGNORED, MASKS, Boundaries
from streaming_ext.batches.spread import Spread
from streaming_ext.batches.token_reader import Located, TokenReader
from streaming_ext.errors import UsageError
from streaming_ext.sampler.epoch_plan import Cursor, EpochPlan
from streaming_ext.sampler.order import Ints
from streaming_ext.shards.prefetch import Prefetcher

EXTRAS: Final = (*MASKS, "starts_inside", "sequence_ids")
PLANNED_ROWS: Final = 4096  # planned at once: the plan then costs little a batch
_A_ROW: Final = ("real", "sequence_ids", "starts_inside")  # arrays with one value a row

Batch = dict[str, Any]
Flags = npt.NDArray[np.bool_]


class BatchReader:
    """Makes the batches of one rank from a plan and a reader."""

    def __init__(
        self,
        plan: EpochPlan,
        reader: TokenReader,
        *,
        sequence_length: int,
        extras: Collection[str],
        eot_id: int | None,
        predownload: int,
        prefetch_limit: int | None,
    ) -> None:
        """Choose what a batch holds besides its tokens.

        Args:
            plan: which sequences.
            reader: where they are.
            sequence_length: tokens a sequence.
            extras: any of `EXTRAS`.
            eot_id: the id that ends a document, None where unknown.
            predownload: sequences of this rank to run ahead with fetching.
            prefetch_limit: bytes of shards fetched ahead, None for no limit.
        """
        if unknown := sorted(set(extras) - set(EXTRAS)):
            raise UsageError(f"`extras` may name {', '.join(EXTRAS)}; got {', '.join(unknown)}.")
        if eot_id is None and set(extras) - {"sequence_ids"}:
            raise UsageError(
                f"extras={sorted(extras)} need the id that ends a document, which this dataset "
                "does not say. Pass eot_id=..., or leave them out."
            )
        self.plan = plan
        self.reader = reader
        self.length = sequence_length
        self.extras = frozenset(extras)
        self._eot = -1 if eot_id is None else eot_id
        self._masks = self.extras & set(MASKS)
        self._buffers = Buffers()
        self._spread: Spread | None = None
        if self._masks:
            reader.find_ends(self._eot)
        self._predownload = predownload
        self._prefetch_limit = prefetch_limit

    def batches(
        self, cursor: Cursor, blocks: Iterable[range], *, together: int, whole: bool = False
    ) -> Iterator[Batch]:
        """The batches of some steps, one after another.

        Args:
            cursor: where step 0 is.
            blocks: numbers of steps; each block is planned at once. Gone through twice, the
                second time ahead of the first.
            together: steps whose rows are gathered at once, where their shards are ready.
            whole: gather as many also where a shard must be waited for.

        Yields:
            raw batches, each of one step or more: what `split` makes batches of.
        """
        at = 0
        size = self.plan.slices.batch_size
        self.reader.ensure(np.empty(0, np.int64))  # become this process
        prefetcher = Prefetcher(
            self.reader,
            self._upcoming(cursor, blocks),
            ahead=max(1, self._predownload // size),
            limit=self._prefetch_limit,
            now=lambda: at,
        )
        try:
            for block in blocks:
                streams, sequences = self.plan.sequences(cursor, np.array(block, np.int64))
                numbers = sequences.reshape(-1)
                located, real = self._locate(streams.reshape(-1), numbers)
                found = range(0)  # steps whose boundaries are known
                first = 0
                while first < len(block):
                    at = block[first]
                    steps = min(together, len(block) - first)
                    if not (whole or self._ready(located, first, steps)):
                        steps = 1
                    rows = slice(first * size, (first + steps) * size)
                    self.reader.ensure(self.reader.shards_of(located, rows))
                    raw = self._batch(located, rows, real, numbers[rows])
                    if self._masks:
                        if first not in found:
                            # At once for all that is left, where no shard must be waited for.
                            rest = len(block) - first
                            known = rest if self._ready(located, first, rest) else steps
                            found = range(first, first + known)
                            marks = self._boundaries(located, found, real, size)
                        raw |= {"boundaries": marks, "step": first - found.start}
                    yield raw
                    first += steps
        finally:
            prefetcher.stop()

    def read(self, stream: int, sequences: Ints) -> Batch:
        """Some sequences of one stream, by their numbers on disk, as a raw batch."""
        located, real = self._locate(np.full_like(sequences, stream), sequences)
        rows = slice(0, len(sequences))
        self.reader.ensure(self.reader.shards_of(located, rows))
        raw = self._batch(located, rows, real, sequences)
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
        return batch

    def _locate(self, streams: Ints, sequences: Ints) -> tuple[Located, Flags]:
        real = sequences >= 0
        starts = self.reader.stream_starts[streams] + np.maximum(sequences, 0) * self.length
        return self.reader.locate(starts, self.length), real

    def _ready(self, located: Located, first: int, steps: int) -> bool:
        size = self.plan.slices.batch_size
        shards = self.reader.shards_of(located, slice(first * size, (first + steps) * size))
        return bool(self.reader.ready[shards].all())

    def _boundaries(self, located: Located, steps: range, real: Flags, size: int) -> Boundaries:
        rows = slice(steps.start * size, steps.stop * size)
        return self.reader.boundaries(
            located, rows, self.length, steps=len(steps), real=real[rows],
            targets="targets" in self._masks,
        )  # fmt: skip

    def _batch(self, located: Located, rows: slice, real: Flags, sequences: Ints) -> Batch:
        reader = self.reader
        tokens = reader.gather(located, rows, self.length)
        batch: Batch = {"tokens": tokens}
        chosen = real[rows]
        if not self.plan.drop_last:
            if not chosen.all():
                tokens[~chosen] = max(0, self._eot)
            batch["real"] = chosen
        if "sequence_ids" in self.extras:
            batch["sequence_ids"] = sequences
        if "starts_inside" in self.extras:
            before, known = reader.before(located, rows)
            before = self._with_edges(located.starts[rows], before, known)
            batch["starts_inside"] = (before != self._eot) & chosen
        return batch

    def _with_edges(
        self, starts: Ints, before: np.ndarray[Any, Any], known: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """The token before each row, from the shard before where the row is a shard's first.

        The start of a stream counts as the start of a document.
        """
        unknown = np.flatnonzero(~known)
        if not unknown.size:
            return before
        before = before.copy()
        before[unknown] = self._eot
        unknown = unknown[~np.isin(starts[unknown], self.reader.stream_starts)]
        if unknown.size:
            located = self.reader.locate(starts[unknown] - 1, 1)
            self.reader.ensure(located.first)
            before[unknown] = self.reader.gather(located, slice(0, len(unknown)), 1)[:, 0]
        return before

    def _upcoming(self, cursor: Cursor, blocks: Iterable[range]) -> Iterator[tuple[int, int]]:
        """Step and shard of each first use, leaving out what is ready."""
        size = self.plan.slices.batch_size
        for block in blocks:
            if self.reader.ready.all():
                return
            streams, sequences = self.plan.sequences(cursor, np.array(block, np.int64))
            located, _ = self._locate(streams.reshape(-1), sequences.reshape(-1))
            # row by row the first and the last shard: (2 * rows,)
            shards = np.stack([located.first, located.last], axis=1).reshape(-1)
            distinct, at = np.unique(shards, return_index=True)
            for place in np.argsort(at).tolist():
                shard = int(distinct[place])
                if not self.reader.ready[shard]:
                    yield block[int(at[place]) // (2 * size)], shard


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
