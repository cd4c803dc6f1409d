"""Which sequences a rank reads in which step: order, mixture and ranks put together."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.errors import UsageError
from streaming_ext.sampler.batching import Batching
from streaming_ext.sampler.cursor import Cursor
from streaming_ext.sampler.grown.grown_pass import Earlier, GrownOrders
from streaming_ext.sampler.orders.dealing import Dealing
from streaming_ext.sampler.orders.many_orders import ManyOrders
from streaming_ext.sampler.orders.mixing import Mixing
from streaming_ext.sampler.orders.mixture import Mixture
from streaming_ext.sampler.orders.order import OrderSpec, StreamOrder
from streaming_ext.sampler.rank_slices import RankSlices
from streaming_ext.sampler.stages import Stage, StepSizes, Visit


class EpochPlan:
    """The sequences of every step of one rank."""

    def __init__(
        self,
        spec: OrderSpec,
        *,
        bounds: list[Ints],
        choose: list[int],
        slices: RankSlices,
        drop_last: bool,
        left_out: list[Ints] | None = None,
        batching: Batching = Batching(),  # noqa: B008 - it is frozen
        length: int = 1,
        sizes: StepSizes | None = None,
        mixing: Mixing | None = None,
        earlier: Sequence[Earlier] = (),
    ) -> None:
        """Put the parts together.

        Args:
            spec: the order within each stream.
            bounds: see `PassOrder`, one a stream.
            choose: sequences of each stream an epoch; with `mixing` only their sum counts.
            slices: of every step, one a rank; with `sizes`, of those of the first size.
            drop_last: leave out the last short step of an epoch, and of each stream what makes no
                whole row; or fill both up with sequence -1.
            left_out: see `StreamOrder`, one a stream.
            batching: how several streams share a step.
            length: tokens a place.
            sizes: of the steps, where they change.
            mixing: proportions of the streams, where they change or have limits.
            earlier: older generations of the one stream, where a state of theirs may go on.

        Raises:
            UsageError: there is nothing to read, or less than a step or `mixing` asks for.
        """
        self.length = length
        self._sizes = sizes
        self._stages: tuple[Cursor | None, list[Stage]] = (None, [])  # those asked for last
        self.mixing = mixing
        self.slices = slices
        self.drop_last = drop_last
        self._orders = [
            StreamOrder(
                spec,
                bounds=each,
                stream=number,
                left_out=None if left_out is None else left_out[number],
            )
            for number, each in enumerate(bounds)
        ]
        self.grown = GrownOrders(spec, self._orders[0], bounds[0], earlier)
        self._many = ManyOrders(self._orders)
        self._lanes = spec.lanes
        for number, order in enumerate(self._orders):
            if order.size < 1:
                raise UsageError(f"Stream {number} holds less than one sequence.")
        self.sizes = tuple(order.size for order in self._orders)
        self._dealing = Dealing(
            spec,
            sizes=self.sizes,
            choose=choose,
            batching=batching,
            global_batch=slices.global_batch,
            drop_last=drop_last,
            mixing=mixing,
            length=length,
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
                f"{slices.global_batch}. Lower batch_size, or raise epoch_size."
            )
        if sizes is not None:
            sizes.require_epoch(self.epoch_size)

    @property
    def global_batch(self) -> int | str:
        """Sequences a step, as a state names them."""
        if self._sizes is None:
            return self.slices.global_batch
        schedule = self._sizes.global_batch
        return schedule.largest if schedule.constant else str(schedule)

    @property
    def varies(self) -> bool:
        """Whether steps of different sizes come."""
        return self._sizes is not None and self._sizes.change

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
        return self._dealing.chosen(cursor)

    def stages(self, cursor: Cursor) -> list[Stage]:
        """The steps behind a cursor, to the end of its epoch; the first one is number 0."""
        if self._sizes is None and cursor.past is None:
            return self._stages_from(cursor.place, cursor)
        kept, stages = self._stages
        if kept != cursor:
            stages = self._stages_with_past(cursor)
            self._stages = cursor, stages
        return stages

    def _stages_with_past(self, cursor: Cursor) -> list[Stage]:
        past = (
            []
            if cursor.past is None
            else cursor.past.stages(place=cursor.place, longest=self.length, slices=self.slices)
        )
        if not past:
            return self._stages_from(cursor.place, cursor)
        behind = self._stages_from(past[-1].end, cursor)
        return past + [
            replace(stage, first=past[-1].stop + stage.first) for stage in behind if stage.steps
        ]

    def _stages_from(self, place: int, cursor: Cursor) -> list[Stage]:
        """The stages behind a place of the cursor's epoch by today's sizes."""
        if self._sizes is not None:
            return self._sizes.stages(
                place=place, end=self.epoch_size, tokens=cursor.tokens, slices=self.slices
            )
        return [
            Stage(
                first=0,
                steps=self._fixed_steps(place),
                place=place,
                length=self.length,
                slices=self.slices,
            )
        ]

    def stage_of(self, cursor: Cursor, step: int) -> Stage:
        """The stage of a step behind a cursor; of the last one where there is no such step."""
        stages = self.stages(cursor)
        return next((stage for stage in stages if step < stage.stop), stages[-1])

    def steps_left(self, cursor: Cursor) -> int:
        """Steps behind a cursor, to the end of its epoch."""
        if self._sizes is None and cursor.past is None:
            return self._fixed_steps(cursor.place)
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
        mixture = self._dealing.mixture_of(cursor)
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
        stages, mixture = self.stages(begin), self._dealing.mixture_of(begin)
        found = []
        drawn = (
            self.grown.draws_of(cursor.grown, sequences, draws)
            if cursor.grown
            else self._orders[stream].draws_of(sequences, draws)
        )
        for draw, sequence in drawn:
            place = draw - base
            if mixture is not None:
                place = mixture.place_of(cursor.epoch, stream, place)
            stage = next((each for each in stages if place < each.end), None)
            if stage is None:
                continue
            step, pieces = stage.step_of(place), stage.slices.pieces
            for piece in range(pieces):
                rank = stage.slices.rank_of(place, piece, start=stage.place_of(step), shift=shift)
                found.append(
                    Visit(
                        step=step,
                        rank=rank,
                        sequence=sequence * pieces + piece,
                        length=stage.length,
                    )
                )
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
        stage = self.stage_of(cursor, int(steps[0]))
        return self._of_slices(cursor, steps, stage, stage.slices)

    def whole_step(self, cursor: Cursor, step: int) -> tuple[Ints, Ints]:
        """What all ranks read in one step, rank by rank: streams and sequences, (sequences,)."""
        stage = self.stage_of(cursor, step)
        own = stage.slices
        slices = RankSlices(
            batch_size=own.batch_size * own.num_ranks,
            lanes=own.lanes,
            rank=0,
            num_ranks=1,
            pieces=own.pieces,
        )
        streams, sequences = self._of_slices(cursor, np.array([step]), stage, slices)
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

    def _of_slices(
        self, cursor: Cursor, steps: Ints, stage: Stage, slices: RankSlices
    ) -> tuple[Ints, Ints]:
        starts = stage.place + (steps - stage.first) * slices.global_batch
        shift = cursor.before[0] % self._lanes
        places = slices.places(starts, shift=shift).reshape(-1)
        shape = (len(steps), slices.batch_size)
        streams, sequences = np.zeros_like(places), np.full_like(places, -1)
        inside = np.flatnonzero(places < self.filled)
        if inside.size == places.size:
            streams, sequences = self._look_up(cursor, places)
        elif inside.size:
            streams[inside], sequences[inside] = self._look_up(cursor, places[inside])
        streams, sequences = streams.reshape(shape), sequences.reshape(shape)
        if slices.pieces > 1:
            sequences = sequences * slices.pieces + slices.piece_numbers
        return streams, sequences

    def _look_up(self, cursor: Cursor, places: Ints) -> tuple[Ints, Ints]:
        mixture = self._dealing.mixture_of(cursor)
        if mixture is None:
            draws = cursor.before[0] + places
            if cursor.grown is not None:
                return np.zeros_like(places), self.grown.sequences(cursor.grown, draws)
            return np.zeros_like(places), self._orders[0].sequences(draws)
        streams, draws = mixture.draws(cursor.epoch, places, cursor.before)
        sequences = self._many.sequences(streams, draws)
        if not self.drop_last and self.mixing is None:  # the last row of a stream may be short
            behind = np.add(cursor.before, self.choose)[streams]
            sequences = np.where(draws < behind, sequences, -1)
        return streams, sequences

    def _fixed_steps(self, place: int) -> int:
        return self.slices.steps(max(0, self.epoch_size - place), drop_last=self.drop_last)
