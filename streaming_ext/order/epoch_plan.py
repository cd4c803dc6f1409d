"""Which sequences a rank reads in which step: order, mixture and ranks put together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import UsageError
from streaming_ext.order.growth import Earlier, GrownOrders, Growth
from streaming_ext.order.mixing import Dealing, Mixing
from streaming_ext.order.mixture import Mixture
from streaming_ext.order.order import OrderSpec, StreamOrders
from streaming_ext.order.ranks import DataRank
from streaming_ext.order.steps import PastSizes, Phase, StepSizes


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A position between two steps.

    Attributes:
        epoch: number of the epoch, from 0.
        position: positions of the epoch that lie behind.
        before: draws of each stream before this epoch.
        missed: those of them that never came: passes before an extension were shorter.
        tokens: of training before this epoch, of all streams it ever had.
        grown: of a dataset that was extended during this pass.
        past: of an epoch in which the sizes of steps were changed.
    """

    epoch: int
    position: int
    before: tuple[int, ...]
    missed: tuple[int, ...]
    tokens: int = 0
    grown: Growth | None = None
    past: PastSizes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """A sequence in an epoch: its number on disk, its length, the step, and the rank."""

    step: int
    rank: int
    sequence: int
    length: int


class EpochPlan:
    """The sequences of every step of one rank."""

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
        earlier: Sequence[Earlier] = (),
    ) -> None:
        """Put the parts together.

        Args:
            spec: the order within each stream.
            bounds: see `PassOrder`, one a stream.
            choose: sequences of each stream an epoch; with `mixing` only their sum counts.
            steps: their sizes, over all ranks.
            rank: the one that reads.
            drop_last: leave out the last short step of an epoch, and of each stream what makes no
                whole row; or fill both up with sequence -1.
            left_out: see `StreamOrders`, one a stream.
            method: how several streams share a step, see `Dealing`.
            mixing: proportions of the streams, where they change or have limits.
            earlier: older generations of the one stream, where a state of theirs may go on.

        Raises:
            UsageError: there is nothing to read, or less than a step or `mixing` asks for.
        """
        self.length, self.steps, self.rank = steps.longest, steps, rank
        self._phases: tuple[Cursor | None, list[Phase]] = (None, [])  # those asked for last
        self.mixing = mixing
        self.drop_last = drop_last
        self._canonical_nodes = spec.canonical_nodes
        # Ranks take the positions of a step as they come where rows of it are those of a rank.
        self._nodes_of_ranks = 1 if method == "device_per_stream" else spec.canonical_nodes
        self._orders = StreamOrders(spec, bounds=bounds, left_out=left_out)
        self.sizes: tuple[int, ...] = tuple(self._orders.sizes.tolist())
        if 0 in self.sizes:
            raise UsageError(f"Stream {self.sizes.index(0)} holds less than one sequence.")
        self.grown = GrownOrders(spec, self._orders, bounds[0], earlier)
        batch, length = steps.at(0)
        step = batch * length // self.length
        self.batch_size = batch // rank.size  # sequences of this rank in the first step
        self._dealing = Dealing(
            spec,
            sizes=self.sizes,
            choose=choose,
            method=method,
            step=step,
            ranks=rank.size,
            drop_last=drop_last,
            mixing=mixing,
            length=self.length,
        )
        self.row = self._dealing.row  # positions in a row that all draw from one stream
        self.epoch_size = self._dealing.epoch_size
        self.filled = self.epoch_size  # positions before the last fillers
        self.choose = self._dealing.choose  # of the first epoch
        if mixing is not None:
            self.choose = self.chosen(self.start(0))
        if self.steps_left(self.start(0)) < 1:
            raise UsageError(
                f"An epoch of {self.epoch_size} sequences is less than one global batch of "
                f"{step}. Lower batch_size, or raise epoch_size."
            )
        if steps.change:
            steps.require_epoch(self.epoch_size)

    @property
    def varies(self) -> bool:
        """Whether steps of different sizes come."""
        return self.steps.change

    def start(self, epoch: int) -> Cursor:
        """The beginning of an epoch in a run that changed nothing on the way."""
        if self.mixing is None:
            return Cursor(
                epoch=epoch,
                position=0,
                tokens=epoch * self.tokens_of(self.epoch_size),
                before=tuple(epoch * count for count in self.choose),
                missed=(0,) * len(self.choose),
            )
        zero = (0,) * len(self.sizes)
        cursor = Cursor(epoch=0, position=0, before=zero, missed=zero)
        for _ in range(epoch):
            cursor = self.next_epoch(cursor)
        return cursor

    def next_epoch(self, cursor: Cursor) -> Cursor:
        """The beginning of the epoch after the cursor's."""
        before = tuple(a + b for a, b in zip(cursor.before, self.chosen(cursor), strict=True))
        return Cursor(
            epoch=cursor.epoch + 1,
            position=0,
            before=before,
            grown=self.grown.still(cursor.grown, before[0]),
            missed=cursor.missed,
            tokens=cursor.tokens + self.tokens_of(self.epoch_size),
        )

    def chosen(self, cursor: Cursor) -> tuple[int, ...]:
        """Sequences of each stream in the cursor's epoch."""
        return self._dealing.chosen(cursor.tokens, cursor.before)

    def phases(self, cursor: Cursor) -> list[Phase]:
        """The steps behind a cursor, to the end of its epoch; the first one is number 0."""
        kept, phases = self._phases
        if kept != cursor:
            past = cursor.past
            if past is None or past.until <= cursor.position:
                phases = self._phases_between(self.steps, cursor, cursor.position, self.epoch_size)
            else:
                phases = self._phases_between(past.sizes, cursor, cursor.position, past.until)
                stop = phases[-1].stop
                behind = self._phases_between(self.steps, cursor, past.until, self.epoch_size)
                phases += [replace(phase, first=stop + phase.first) for phase in behind]
            self._phases = cursor, phases
        return phases

    def _phases_between(
        self, sizes: StepSizes, cursor: Cursor, position: int, end: int
    ) -> list[Phase]:
        return sizes.phases(
            position=position,
            end=end,
            tokens=cursor.tokens,
            canonical_nodes=self._nodes_of_ranks,
            rank=self.rank,
            drop_last=self.drop_last,
        )

    def phase_of(self, cursor: Cursor, step: int) -> Phase:
        """The phase of a step behind a cursor; of the last one where there is no such step."""
        phases = self.phases(cursor)
        return next((phase for phase in phases if step < phase.stop), phases[-1])

    def steps_left(self, cursor: Cursor) -> int:
        """Steps behind a cursor, to the end of its epoch."""
        phases = self.phases(cursor)
        return phases[-1].stop if phases else 0

    def after(self, cursor: Cursor, steps: int) -> Cursor:
        """The cursor behind some more steps of its epoch, of which there are as many."""
        if not steps:
            return cursor
        position = self.phase_of(cursor, steps - 1).position_of(steps)
        return replace(cursor, position=min(position, self.epoch_size))

    def steps_done(self, cursor: Cursor) -> int:
        """Steps of the cursor's epoch that lie before it."""
        begin = replace(cursor, position=0)
        for phase in self.phases(begin):
            if phase.position <= cursor.position <= phase.end:
                return phase.step_of(cursor.position)
        return self.steps_left(begin)

    def tokens_seen(self, cursor: Cursor) -> int:
        """Tokens of training up to a position, of all streams it ever had."""
        return cursor.tokens + self.tokens_of(cursor.position)

    def tokens_of(self, positions: int) -> int:
        """Tokens of the first positions of an epoch, over all ranks."""
        return positions * self.length

    def drawn(self, cursor: Cursor) -> tuple[int, ...]:
        """Draws of each stream up to a position, in whole rows."""
        return self._up_to(cursor, cursor.before, Mixture.consumed)

    def seen(self, cursor: Cursor) -> tuple[int, ...]:
        """Sequences of each stream up to a position, to the last one."""
        before = tuple(a - b for a, b in zip(cursor.before, cursor.missed, strict=True))
        return self._up_to(cursor, before, Mixture.seen)

    def _up_to(
        self,
        cursor: Cursor,
        before: tuple[int, ...],
        count: Callable[[Mixture, int, int], tuple[int, ...]],
    ) -> tuple[int, ...]:
        """Draws before an epoch and in it, of which those that fill up are none."""
        if not cursor.position:  # there need not be a further epoch: streams may be used up
            return before
        mixture = self._dealing.mixture(cursor.tokens, cursor.before)
        if mixture is None:
            return (before[0] + cursor.position,)
        inside = map(min, count(mixture, cursor.epoch, cursor.position), self.chosen(cursor))
        return tuple(a + b for a, b in zip(before, inside, strict=True))

    def visits(self, cursor: Cursor, stream: int, sequences: Ints) -> list[Visit]:
        """Where in the cursor's epoch some sequences of a stream come, in the order of the steps.

        Those are left out that no step holds.
        """
        base = self._first_draw(cursor, stream)
        draws = range(base, base + min(self.chosen(cursor)[stream], self.filled))
        shift = cursor.before[0] % self._canonical_nodes
        begin = replace(cursor, position=0)
        phases, mixture = self.phases(begin), self._dealing.mixture(begin.tokens, begin.before)
        found = []
        drawn = (
            self.grown.draws_of(cursor.grown, sequences, draws)
            if cursor.grown
            else self._orders.draws_of(stream, sequences, draws)
        )
        for draw, sequence in drawn:
            position = draw - base
            if mixture is not None:
                position = mixture.position_of(cursor.epoch, stream, position)
            phase = next((each for each in phases if position < each.end), None)
            if phase is None:
                continue
            found += [
                Visit(
                    step=phase.step_of(position),
                    rank=phase.rank_of(position, index, shift=shift),
                    sequence=sequence * phase.per_position + index,
                    length=phase.length,
                )
                for index in range(phase.per_position)
            ]
        return sorted(found, key=lambda visit: (visit.step, visit.rank))

    def _first_draw(self, cursor: Cursor, stream: int) -> int:
        """The draw of a stream that the first position of an epoch which it has is."""
        return cursor.before[stream]

    def sequences(self, cursor: Cursor, steps: Ints) -> tuple[Ints, Ints]:
        """What this rank reads in some steps.

        Args:
            cursor: where step 0 begins.
            steps: numbers of steps behind the cursor, of one phase: (steps,).

        Returns:
            streams and sequences, each (steps, batch_size); sequence -1 fills a short step. Where
            a step holds parts of positions, sequences count in such parts.
        """
        return self._of_phase(cursor, steps, self.phase_of(cursor, int(steps[0])))

    def whole_step(self, cursor: Cursor, step: int) -> tuple[Ints, Ints]:
        """What all ranks read in one step, rank by rank: streams and sequences, (sequences,)."""
        phase = self.phase_of(cursor, step).of_all_ranks
        streams, sequences = self._of_phase(cursor, np.array([step]), phase)
        return streams[0], sequences[0]

    def at_positions(self, cursor: Cursor, positions: Ints) -> tuple[Ints, Ints]:
        """Streams and sequences of some positions of the cursor's epoch, of all ranks.

        Args:
            cursor: anywhere in the epoch.
            positions: (positions,); those that hold no sequence are left out.
        """
        streams, sequences = self._look_up(cursor, positions[positions < self.filled])
        real = sequences >= 0
        return streams[real], sequences[real]

    def _of_phase(self, cursor: Cursor, steps: Ints, phase: Phase) -> tuple[Ints, Ints]:
        positions = phase.positions(steps, shift=cursor.before[0] % self._canonical_nodes).reshape(
            -1
        )
        shape = (len(steps), phase.batch_size)
        streams, sequences = np.zeros_like(positions), np.full_like(positions, -1)
        inside = np.flatnonzero(positions < self.filled)
        if inside.size == positions.size:
            streams, sequences = self._look_up(cursor, positions)
        elif inside.size:
            streams[inside], sequences[inside] = self._look_up(cursor, positions[inside])
        streams, sequences = streams.reshape(shape), sequences.reshape(shape)
        if phase.per_position > 1:
            sequences = sequences * phase.per_position + phase.index_in_position
        return streams, sequences

    def _look_up(self, cursor: Cursor, positions: Ints) -> tuple[Ints, Ints]:
        mixture = self._dealing.mixture(cursor.tokens, cursor.before)
        if mixture is None:
            draws = cursor.before[0] + positions
            if cursor.grown is not None:
                return np.zeros_like(positions), self.grown.sequences(cursor.grown, draws)
            streams = np.zeros_like(positions)
            return streams, self._orders.sequences(streams, draws)
        streams, draws = mixture.draws(cursor.epoch, positions, cursor.before)
        sequences = self._orders.sequences(streams, draws)
        if not self.drop_last and self.mixing is None:  # the last row of a stream may be short
            behind = np.add(cursor.before, self.choose)[streams]
            sequences = np.where(draws < behind, sequences, -1)
        return streams, sequences
