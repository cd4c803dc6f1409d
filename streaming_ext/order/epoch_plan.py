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
from streaming_ext.order.steps import PastSizes, Stage, StepSizes


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A place between two steps.

    Attributes:
        epoch: number of the epoch, from 0.
        place: places of the epoch that lie behind.
        before: draws of each stream before this epoch.
        missed: those of them that never came: passes before an extension were shorter.
        tokens: of training before this epoch, of all streams it ever had.
        grown: of a dataset that was extended during this pass.
        past: of an epoch in which the sizes of steps were changed.
    """

    epoch: int
    place: int
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
        self._stages: tuple[Cursor | None, list[Stage]] = (None, [])  # those asked for last
        self.mixing = mixing
        self.drop_last = drop_last
        self._lanes = spec.lanes
        # Ranks take the places of a step as they come where rows of it are those of a rank.
        self._lanes_of_ranks = 1 if method == "device_per_stream" else spec.lanes
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
        self.row = self._dealing.row  # places in a row that all draw from one stream
        self.epoch_size = self._dealing.epoch_size
        self.filled = self.epoch_size  # places before the last fillers
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
                place=0,
                tokens=epoch * self.tokens_of(self.epoch_size),
                before=tuple(epoch * count for count in self.choose),
                missed=(0,) * len(self.choose),
            )
        zero = (0,) * len(self.sizes)
        cursor = Cursor(epoch=0, place=0, before=zero, missed=zero)
        for _ in range(epoch):
            cursor = self.next_epoch(cursor)
        return cursor

    def next_epoch(self, cursor: Cursor) -> Cursor:
        """The beginning of the epoch after the cursor's."""
        before = tuple(a + b for a, b in zip(cursor.before, self.chosen(cursor), strict=True))
        return Cursor(
            epoch=cursor.epoch + 1,
            place=0,
            before=before,
            grown=self.grown.still(cursor.grown, before[0]),
            missed=cursor.missed,
            tokens=cursor.tokens + self.tokens_of(self.epoch_size),
        )

    def chosen(self, cursor: Cursor) -> tuple[int, ...]:
        """Sequences of each stream in the cursor's epoch."""
        return self._dealing.chosen(cursor.tokens, cursor.before)

    def stages(self, cursor: Cursor) -> list[Stage]:
        """The steps behind a cursor, to the end of its epoch; the first one is number 0."""
        kept, stages = self._stages
        if kept != cursor:
            past = cursor.past
            if past is None or past.until <= cursor.place:
                stages = self._stages_between(self.steps, cursor, cursor.place, self.epoch_size)
            else:
                stages = self._stages_between(past.sizes, cursor, cursor.place, past.until)
                stop = stages[-1].stop
                behind = self._stages_between(self.steps, cursor, past.until, self.epoch_size)
                stages += [replace(stage, first=stop + stage.first) for stage in behind]
            self._stages = cursor, stages
        return stages

    def _stages_between(
        self, sizes: StepSizes, cursor: Cursor, place: int, end: int
    ) -> list[Stage]:
        return sizes.stages(
            place=place,
            end=end,
            tokens=cursor.tokens,
            lanes=self._lanes_of_ranks,
            rank=self.rank,
            drop_last=self.drop_last,
        )

    def stage_of(self, cursor: Cursor, step: int) -> Stage:
        """The stage of a step behind a cursor; of the last one where there is no such step."""
        stages = self.stages(cursor)
        return next((stage for stage in stages if step < stage.stop), stages[-1])

    def steps_left(self, cursor: Cursor) -> int:
        """Steps behind a cursor, to the end of its epoch."""
        stages = self.stages(cursor)
        return stages[-1].stop if stages else 0

    def after(self, cursor: Cursor, steps: int) -> Cursor:
        """The cursor behind some more steps of its epoch, of which there are as many."""
        if not steps:
            return cursor
        place = self.stage_of(cursor, steps - 1).place_of(steps)
        return replace(cursor, place=min(place, self.epoch_size))

    def steps_done(self, cursor: Cursor) -> int:
        """Steps of the cursor's epoch that lie before it."""
        begin = replace(cursor, place=0)
        for stage in self.stages(begin):
            if stage.place <= cursor.place <= stage.end:
                return stage.step_of(cursor.place)
        return self.steps_left(begin)

    def tokens_seen(self, cursor: Cursor) -> int:
        """Tokens of training up to a place, of all streams it ever had."""
        return cursor.tokens + self.tokens_of(cursor.place)

    def tokens_of(self, places: int) -> int:
        """Tokens of the first places of an epoch, over all ranks."""
        return places * self.length

    def drawn(self, cursor: Cursor) -> tuple[int, ...]:
        """Draws of each stream up to a place, in whole rows."""
        return self._up_to(cursor, cursor.before, Mixture.consumed)

    def seen(self, cursor: Cursor) -> tuple[int, ...]:
        """Sequences of each stream up to a place, to the last one."""
        before = tuple(a - b for a, b in zip(cursor.before, cursor.missed, strict=True))
        return self._up_to(cursor, before, Mixture.seen)

    def _up_to(
        self,
        cursor: Cursor,
        before: tuple[int, ...],
        count: Callable[[Mixture, int, int], tuple[int, ...]],
    ) -> tuple[int, ...]:
        """Draws before an epoch and in it, of which those that fill up are none."""
        if not cursor.place:  # there need not be a further epoch: streams may be used up
            return before
        mixture = self._dealing.mixture(cursor.tokens, cursor.before)
        if mixture is None:
            return (before[0] + cursor.place,)
        inside = map(min, count(mixture, cursor.epoch, cursor.place), self.chosen(cursor))
        return tuple(a + b for a, b in zip(before, inside, strict=True))

    def visits(self, cursor: Cursor, stream: int, sequences: Ints) -> list[Visit]:
        """Where in the cursor's epoch some sequences of a stream come, in the order of the steps.

        Those are left out that no step holds.
        """
        base = self._first_draw(cursor, stream)
        draws = range(base, base + min(self.chosen(cursor)[stream], self.filled))
        shift = cursor.before[0] % self._lanes
        begin = replace(cursor, place=0)
        stages, mixture = self.stages(begin), self._dealing.mixture(begin.tokens, begin.before)
        found = []
        drawn = (
            self.grown.draws_of(cursor.grown, sequences, draws)
            if cursor.grown
            else self._orders.draws_of(stream, sequences, draws)
        )
        for draw, sequence in drawn:
            place = draw - base
            if mixture is not None:
                place = mixture.place_of(cursor.epoch, stream, place)
            stage = next((each for each in stages if place < each.end), None)
            if stage is None:
                continue
            found += [
                Visit(
                    step=stage.step_of(place),
                    rank=stage.rank_of(place, piece, shift=shift),
                    sequence=sequence * stage.pieces + piece,
                    length=stage.length,
                )
                for piece in range(stage.pieces)
            ]
        return sorted(found, key=lambda visit: (visit.step, visit.rank))

    def _first_draw(self, cursor: Cursor, stream: int) -> int:
        """The draw of a stream that the first place of an epoch which it has is."""
        return cursor.before[stream]

    def sequences(self, cursor: Cursor, steps: Ints) -> tuple[Ints, Ints]:
        """What this rank reads in some steps.

        Args:
            cursor: where step 0 begins.
            steps: numbers of steps behind the cursor, of one stage: (steps,).

        Returns:
            streams and sequences, each (steps, batch_size); sequence -1 fills a short step. Where
            a step holds pieces of places, sequences count in such pieces.
        """
        return self._of_stage(cursor, steps, self.stage_of(cursor, int(steps[0])))

    def whole_step(self, cursor: Cursor, step: int) -> tuple[Ints, Ints]:
        """What all ranks read in one step, rank by rank: streams and sequences, (sequences,)."""
        stage = self.stage_of(cursor, step).of_all_ranks
        streams, sequences = self._of_stage(cursor, np.array([step]), stage)
        return streams[0], sequences[0]

    def at_places(self, cursor: Cursor, places: Ints) -> tuple[Ints, Ints]:
        """Streams and sequences of some places of the cursor's epoch, of all ranks.

        Args:
            cursor: anywhere in the epoch.
            places: (places,); those that hold no sequence are left out.
        """
        streams, sequences = self._look_up(cursor, places[places < self.filled])
        real = sequences >= 0
        return streams[real], sequences[real]

    def _of_stage(self, cursor: Cursor, steps: Ints, stage: Stage) -> tuple[Ints, Ints]:
        places = stage.places(steps, shift=cursor.before[0] % self._lanes).reshape(-1)
        shape = (len(steps), stage.batch_size)
        streams, sequences = np.zeros_like(places), np.full_like(places, -1)
        inside = np.flatnonzero(places < self.filled)
        if inside.size == places.size:
            streams, sequences = self._look_up(cursor, places)
        elif inside.size:
            streams[inside], sequences[inside] = self._look_up(cursor, places[inside])
        streams, sequences = streams.reshape(shape), sequences.reshape(shape)
        if stage.pieces > 1:
            sequences = sequences * stage.pieces + stage.piece_numbers
        return streams, sequences

    def _look_up(self, cursor: Cursor, places: Ints) -> tuple[Ints, Ints]:
        mixture = self._dealing.mixture(cursor.tokens, cursor.before)
        if mixture is None:
            draws = cursor.before[0] + places
            if cursor.grown is not None:
                return np.zeros_like(places), self.grown.sequences(cursor.grown, draws)
            streams = np.zeros_like(places)
            return streams, self._orders.sequences(streams, draws)
        streams, draws = mixture.draws(cursor.epoch, places, cursor.before)
        sequences = self._orders.sequences(streams, draws)
        if not self.drop_last and self.mixing is None:  # the last row of a stream may be short
            behind = np.add(cursor.before, self.choose)[streams]
            sequences = np.where(draws < behind, sequences, -1)
        return streams, sequences
