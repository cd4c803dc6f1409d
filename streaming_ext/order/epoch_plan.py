"""The sequences of each rank and step: order, mixture and ranks together.

one stream of 10 sequences, not shuffled; 2 canonical nodes: draws 0 5 1 6 2 7 3 8 4 9
steps of 4 sequences hold the positions 0 to 3 and 4 to 7; drop_last leaves out 8 and 9
step 0 on two ranks: rank 0 reads its positions of node 0, sequences 0 1; rank 1 reads 5 6
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import add, sub

import numpy as np

from streaming_ext.base.arrays import Ints, ceil_div
from streaming_ext.base.errors import UsageError
from streaming_ext.base.kinds import count
from streaming_ext.order.mixing import WINDOW_ROWS, Mixing, Mixture
from streaming_ext.order.order import OrderSpec, Recent
from streaming_ext.order.ranks import DataRank
from streaming_ext.order.state import Cursor
from streaming_ext.order.steps import Phase, StepSizes
from streaming_ext.order.streams import StreamOrders


class EpochPlan:
    """The sequences of every step of one rank.

    Attributes:
        spec: the order within each stream.
        nodes_of_ranks: the number of canonical nodes by which a step is divided among ranks.
        row: the number of consecutive positions that draw from one stream.
        epoch_size: positions per epoch.
        choose: sequences of each stream in the first epoch.
        filled: positions of an epoch before the last fillers.
    """

    def __init__(
        self,
        spec: OrderSpec,
        *,
        bounds: Sequence[Ints],
        choose: Sequence[int],
        steps: StepSizes,
        rank: DataRank,
        drop_last: bool,
        left_out: Sequence[Ints] | None = None,
        method: str = "random",
        mixing: Mixing | None = None,
        earlier: Mapping[str, Ints] = {},
    ) -> None:
        """Combine order, mixture and ranks.

        Args:
            spec: the order within each stream.
            bounds: the groups of each stream, see `PassOrder`.
            choose: sequences of each stream per epoch; with `mixing` only their sum counts.
            steps: the sizes of the steps, over all ranks.
            rank: the data-parallel rank that reads.
            drop_last: True to leave out the last short step of an epoch, and the last short row of
                each stream; False to fill both up with sequence -1.
            left_out: sequences of each stream that no pass holds, see `StreamOrders`.
            method: the way in which a step mixes streams, one of `METHODS`.
            mixing: the proportions of the streams, if they change or have limits.
            earlier: older generations of a single stream, see `StreamOrders`.

        Raises:
            UsageError: there is nothing to read, or less than a step or `mixing` requires.
        """
        self.length, self.steps, self.rank = steps.longest, steps, rank
        self.mixing, self.drop_last, self.spec = mixing, drop_last, spec
        # If each rank's batch is of one stream, ranks take the positions of a step in order.
        self.nodes_of_ranks = 1 if method == "device_per_stream" else spec.canonical_nodes
        self._phases: Recent[Cursor, list[Phase]] = Recent(3)
        self._mixtures: Recent[tuple[int, tuple[int, ...]], Mixture] = Recent(3)
        self.orders = StreamOrders(spec, bounds=bounds, left_out=left_out, earlier=earlier)
        self.sizes: tuple[int, ...] = tuple(self.orders.sizes.tolist())
        if 0 in self.sizes:
            raise UsageError(f"Stream {self.sizes.index(0)} holds less than one sequence.")
        batch, length = steps.at(0)
        step = batch * length // self.length
        self.batch_size = batch // rank.size  # sequences of this rank in the first step
        several = len(self.sizes) > 1
        rows = {"per_stream": step, "stratified": 1, "device_per_stream": step // rank.size}
        self.row = rows.get(method, spec.canonical_nodes) if several else 1
        self.choose, self.epoch_size = tuple(choose), sum(choose) // self.row * self.row
        counts = tuple(
            count // self.row if drop_last else ceil_div(count, self.row)
            for count in (choose if mixing is None else [self.epoch_size])
        )
        if 0 in counts:
            raise UsageError(
                f"A stream gives {min(choose)} sequences per epoch, less than the {self.row} "
                f"that batching_method={method!r} takes at once. Raise its proportion or "
                "epoch_size, or lower batch_size or num_canonical_nodes."
            )
        self._constant: Mixture  # of every epoch, unless `mixing` changes it
        if mixing is not None:
            self.choose = self.chosen(self.start(0))
        else:
            window = step if method == "stratified" else WINDOW_ROWS
            self._constant = Mixture(spec, counts, row_size=self.row, window=window)
            self.epoch_size = sum(counts) * self.row
            if drop_last:
                self.choose = self._constant.amounts
        self.filled = self.epoch_size
        if drop_last:
            steps.require_epoch(self.epoch_size)

    def _mixture(self, cursor: Cursor) -> Mixture:
        """Allocate the positions of the cursor's epoch to the streams."""
        if self.mixing is None:
            return self._constant
        tokens, before = cursor.tokens, cursor.before
        return self._mixtures.get_or_make(
            (tokens, before), lambda: _changing_mixture(self, tokens, before)
        )

    def start(self, epoch: int) -> Cursor:
        """Find the beginning of an epoch in training that changed no setting before it.

        Raises:
            UsageError: there is no such epoch.
        """
        epoch = count("epoch", epoch, least=0, most=2**31 - 1)
        zero = (0,) * len(self.sizes)
        cursor = Cursor(epoch=0, position=0, before=zero, missed=zero)
        if self.mixing is not None:
            for _ in range(epoch):
                cursor = self.next_epoch(cursor)
            return cursor
        return replace(
            cursor,
            epoch=epoch,
            tokens=epoch * self.tokens_of(self.epoch_size),
            before=tuple(epoch * count for count in self.choose),
        )

    def next_epoch(self, cursor: Cursor) -> Cursor:
        """Find the beginning of the epoch after the cursor's."""
        before = tuple(map(add, cursor.before, self.chosen(cursor)))
        return replace(
            cursor,
            epoch=cursor.epoch + 1,
            position=0,
            before=before,
            tokens=cursor.tokens + self.tokens_of(self.epoch_size),
            grown=self.orders.growth_from(cursor.grown, before[0]),
            past=None,
        )

    def chosen(self, cursor: Cursor) -> tuple[int, ...]:
        """Count the sequences of each stream in the cursor's epoch."""
        return self.choose if self.mixing is None else self._mixture(cursor).amounts

    def phases(self, cursor: Cursor) -> list[Phase]:
        """List the phases from a cursor to the end of its epoch; their first step is number 0."""
        return self._phases.get_or_make(cursor, lambda: _phases(self, cursor))

    def phase_of(self, cursor: Cursor, step: int) -> Phase:
        """Find the phase of a step after a cursor; the last phase if there is no such step."""
        phases = self.phases(cursor)
        return next((phase for phase in phases if step < phase.stop), phases[-1])

    def steps_left(self, cursor: Cursor) -> int:
        """Count the steps from a cursor to the end of its epoch."""
        phases = self.phases(cursor)
        return phases[-1].stop if phases else 0

    def after(self, cursor: Cursor, steps: int) -> Cursor:
        """Find the cursor after some further steps of its epoch."""
        if not steps:
            return cursor
        position = self.phase_of(cursor, steps - 1).position_of(steps)
        return replace(cursor, position=min(position, self.epoch_size))

    def steps_done(self, cursor: Cursor) -> int:
        """Count the steps of an epoch before a cursor."""
        begin = replace(cursor, position=0)
        for phase in self.phases(begin):
            # At the end of the epoch, the last step may be short.
            if phase.position <= cursor.position <= min(phase.end, self.epoch_size - 1):
                return phase.step_of(cursor.position)
        return self.steps_left(begin)

    def tokens_seen(self, cursor: Cursor) -> int:
        """Count the tokens of training up to a cursor, over all streams that training ever had."""
        return cursor.tokens + self.tokens_of(cursor.position)

    def tokens_of(self, positions: int) -> int:
        """Count the tokens of the first positions of an epoch, over all ranks."""
        return positions * self.length

    def drawn(self, cursor: Cursor) -> tuple[int, ...]:
        """Count the draws of each stream up to a cursor, in whole rows."""
        return self._with_epoch(cursor, cursor.before, Mixture.consumed)

    def seen(self, cursor: Cursor) -> tuple[int, ...]:
        """Count the sequences of each stream up to a cursor."""
        before = tuple(map(sub, cursor.before, cursor.missed))
        return self._with_epoch(cursor, before, Mixture.received)

    def _with_epoch(
        self,
        cursor: Cursor,
        before: tuple[int, ...],
        count: Callable[[Mixture, int, int], tuple[int, ...]],
    ) -> tuple[int, ...]:
        """Add the draws in an epoch, without fillers, to the draws before it."""
        if not cursor.position:  # it may have no mixture: streams may be used up
            return before
        counts = count(self._mixture(cursor), cursor.epoch, cursor.position)
        return tuple(map(add, before, map(min, counts, self.chosen(cursor))))

    def steps_with(self, cursor: Cursor, stream: int, sequences: Ints) -> list[int]:
        """Find the steps of the cursor's epoch that hold some sequences of a stream.

        Args:
            cursor: a position in the epoch.
            stream: the number of the stream.
            sequences: sequences of the longest length: (sequences,).
        """
        base = self._first_draws(cursor)[stream]
        draws = range(base, base + min(self.chosen(cursor)[stream], self.filled))
        begin = replace(cursor, position=0)
        mixture = self._mixture(begin)
        drawn = self.orders.draws_of(stream, sequences, draws, cursor.grown, cursor.keys)
        positions = (mixture.position_of(cursor.epoch, stream, draw - base) for draw in drawn)
        steps = {self.steps_done(replace(cursor, position=position)) for position in positions}
        return sorted(steps - {self.steps_left(begin)})  # no step: it is left out

    def _first_draws(self, cursor: Cursor) -> tuple[int, ...]:
        """Find the first draw of each stream in the cursor's epoch."""
        return cursor.before

    def sequences(self, cursor: Cursor, steps: Ints) -> tuple[Ints, Ints]:
        """Find the sequences of this rank in some steps.

        Args:
            cursor: the position at which step 0 begins.
            steps: the numbers of steps after the cursor, of one phase: (steps,).

        Returns:
            streams and sequences, each (steps, batch_size); sequence -1 fills a short step. In a
            phase of shorter sequences, they are numbered by their own length.
        """
        return self._of_phase(cursor, steps, self.phase_of(cursor, int(steps[0])))

    def step_of_all_ranks(self, cursor: Cursor, step: int) -> tuple[Ints, Ints]:
        """Find streams and sequences of all ranks in one step, rank by rank: (sequences,) each."""
        phase = self.phase_of(cursor, step).of_all_ranks
        streams, sequences = self._of_phase(cursor, np.array([step]), phase)
        return streams[0], sequences[0]

    def at_positions(self, cursor: Cursor, positions: Ints) -> tuple[Ints, Ints]:
        """Find streams and sequences of some positions of the cursor's epoch, of all ranks.

        Args:
            cursor: a position in the epoch.
            positions: the positions: (positions,); those without a sequence are left out.
        """
        streams, sequences = self._look_up(cursor, positions)
        real = sequences >= 0
        return streams[real], sequences[real]

    def _of_phase(self, cursor: Cursor, steps: Ints, phase: Phase) -> tuple[Ints, Ints]:
        shift = cursor.before[0] % self.spec.canonical_nodes  # the epoch's first node
        streams, sequences = self._look_up(cursor, phase.positions(steps, shift=shift))
        return streams, phase.parts_of(sequences)

    def _look_up(self, cursor: Cursor, positions: Ints) -> tuple[Ints, Ints]:
        """Find streams and sequences of positions, of any shape; sequence -1 means none."""
        streams, sequences = np.zeros_like(positions), np.full_like(positions, -1)
        inside = positions < self.filled
        firsts = self._first_draws(cursor)
        own, draws = self._mixture(cursor).draws(cursor.epoch, positions[inside], firsts)
        found = self.orders.sequences(own, draws, cursor.grown, cursor.keys)
        if not self.drop_last and self.mixing is None:  # the last row of a stream may be short
            ends = np.add(firsts, self.choose)[own]
            found = np.where(draws < ends, found, -1)
        streams[inside], sequences[inside] = own, found
        return streams, sequences


def _changing_mixture(plan: EpochPlan, tokens: int, before: tuple[int, ...]) -> Mixture:
    """Allocate the positions of an epoch that begins after some tokens and draws."""
    assert plan.mixing is not None  # noqa: S101 - the caller has checked
    spans = plan.mixing.spans(
        tokens=tokens,
        rows=plan.epoch_size // plan.row,
        row_tokens=plan.row * plan.length,
        room=plan.mixing.room(plan.sizes, before, row=plan.row),
    )
    return Mixture(plan.spec, *spans, row_size=plan.row)


def _phases(plan: EpochPlan, cursor: Cursor) -> list[Phase]:
    sizes = [(plan.steps, plan.epoch_size)]
    if (past := cursor.past) is not None:
        sizes.insert(0, (past.sizes, past.until))
    phases: list[Phase] = []
    position = cursor.position
    for each, end in sizes:
        phases += each.phases(
            first=phases[-1].stop if phases else 0,
            position=position,
            end=end,
            tokens=cursor.tokens,
            canonical_nodes=plan.nodes_of_ranks,
            rank=plan.rank,
            drop_last=plan.drop_last,
        )
        position = max(position, end)
    return phases
