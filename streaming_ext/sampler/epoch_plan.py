"""Which sequences a rank reads in which step: order, mixture and ranks put together."""

from copy import copy
from dataclasses import dataclass

import numpy as np

from streaming_ext.errors import UsageError
from streaming_ext.sampler.mixture import Mixture
from streaming_ext.sampler.order import Ints, OrderSpec, StreamOrder
from streaming_ext.sampler.rank_slices import RankSlices


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A place between two steps.

    Attributes:
        epoch: number of the epoch, from 0.
        place: places of the epoch that lie behind.
        before: draws of each stream before this epoch.
    """

    epoch: int
    place: int
    before: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """A sequence in an epoch: its number on disk, the step, and the rank that reads it."""

    step: int
    rank: int
    sequence: int


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
        per_stream: bool = False,
    ) -> None:
        """Put the parts together.

        Args:
            spec: the order within each stream.
            bounds: see `PassOrder`, one a stream.
            choose: sequences of each stream an epoch.
            slices: of every step, one a rank.
            drop_last: leave out the last short step of an epoch, or fill it with sequence -1.
            left_out: see `StreamOrder`, one a stream.
            per_stream: every step holds sequences of one stream.

        Raises:
            UsageError: there is nothing to read.
        """
        self.slices = slices
        self.drop_last = drop_last
        self._orders = [
            StreamOrder(spec, bounds=each, stream=number,
                        left_out=None if left_out is None else left_out[number])
            for number, each in enumerate(bounds)
        ]  # fmt: skip
        self._mixture: Mixture | None = None
        self.row = 1  # places in a row that all draw from one stream
        for number, order in enumerate(self._orders):
            if order.size < 1:
                raise UsageError(f"Stream {number} holds less than one sequence.")
        if len(bounds) > 1:
            self.row = slices.global_batch if per_stream else spec.lanes
            rows = tuple(count // self.row for count in choose)
            if 0 in rows:
                least, instead = (
                    (f"one global batch of {self.row}", "batch_size")
                    if per_stream
                    else (f"one for each of the {self.row} canonical nodes", "num_canonical_nodes")
                )
                raise UsageError(
                    f"A stream gives {min(choose)} sequences an epoch, less than {least}. Raise "
                    f"its share, or lower {instead}."
                )
            self._mixture = Mixture(rows, lanes=self.row, seed=spec.seed, shuffle=spec.shuffle)
            choose = [count * self.row for count in rows]
        self.choose = tuple(choose)
        self.sizes = tuple(order.size for order in self._orders)
        self.epoch_size = sum(choose)
        self.filled = self.epoch_size  # places of an epoch that hold a sequence
        self._lanes = spec.lanes
        if self.num_steps(0) < 1:
            raise UsageError(
                f"An epoch of {self.epoch_size} sequences is less than one global batch of "
                f"{slices.global_batch}. Lower batch_size, or raise epoch_size."
            )

    def start(self, epoch: int) -> Cursor:
        """The beginning of an epoch in a run that changed nothing on the way."""
        return Cursor(epoch=epoch, place=0, before=tuple(epoch * count for count in self.choose))

    def next_epoch(self, cursor: Cursor) -> Cursor:
        """The beginning of the epoch after the cursor's."""
        before = tuple(a + b for a, b in zip(cursor.before, self.choose, strict=True))
        return Cursor(epoch=cursor.epoch + 1, place=0, before=before)

    def num_steps(self, place: int) -> int:
        """Steps that are left of an epoch behind its first `place` places."""
        return self.slices.steps(max(0, self.epoch_size - place), drop_last=self.drop_last)

    def drawn(self, cursor: Cursor) -> tuple[int, ...]:
        """Draws of each stream up to a place."""
        if self._mixture is None:
            return (cursor.before[0] + cursor.place,)
        inside = self._mixture.consumed(cursor.epoch, cursor.place)
        return tuple(a + b for a, b in zip(cursor.before, inside, strict=True))

    def seen(self, cursor: Cursor) -> tuple[int, ...]:
        """Sequences of each stream up to a place, to the last one."""
        if self._mixture is None:
            return (cursor.before[0] + cursor.place,)
        inside = self._mixture.seen(cursor.epoch, cursor.place)
        return tuple(a + b for a, b in zip(cursor.before, inside, strict=True))

    def visits(self, cursor: Cursor, stream: int, sequences: Ints) -> list[Visit]:
        """Where in the cursor's epoch some sequences of a stream come, in the order of the steps.

        Those are left out that no step holds.
        """
        base = self._first_draw(cursor, stream)
        draws = range(base, base + min(self.choose[stream], self.filled))
        shift = cursor.before[0] % self._lanes
        found = []
        for draw, sequence in self._orders[stream].draws_of(sequences, draws):
            place = draw - base
            if self._mixture is not None:
                place = self._mixture.place_of(cursor.epoch, stream, place)
            step = place // self.slices.global_batch
            if step < self.num_steps(0):
                rank = self.slices.rank_of(place, shift=shift)
                found.append(Visit(step=step, rank=rank, sequence=sequence))
        return sorted(found, key=lambda visit: (visit.step, visit.rank))

    def _first_draw(self, cursor: Cursor, stream: int) -> int:
        """The draw of a stream that the first place of an epoch which it has is."""
        return cursor.before[stream]

    def sequences(self, cursor: Cursor, steps: Ints) -> tuple[Ints, Ints]:
        """What this rank reads in some steps.

        Args:
            cursor: where step 0 begins.
            steps: numbers of steps behind the cursor: (steps,).

        Returns:
            streams and sequences, each (steps, batch_size); sequence -1 fills a short step.
        """
        starts = cursor.place + steps * self.slices.global_batch
        shift = cursor.before[0] % self._lanes
        places = self.slices.places(starts, shift=shift).reshape(-1)
        shape = (len(steps), self.slices.batch_size)
        streams, sequences = np.zeros_like(places), np.full_like(places, -1)
        inside = np.flatnonzero(places < self.filled)
        if inside.size == places.size:
            streams, sequences = self._look_up(cursor, places)
        elif inside.size:
            streams[inside], sequences[inside] = self._look_up(cursor, places[inside])
        return streams.reshape(shape), sequences.reshape(shape)

    def whole_step(self, cursor: Cursor, step: int) -> tuple[Ints, Ints]:
        """What all ranks read in one step, rank by rank: streams and sequences, (global_batch,)."""
        everyone = copy(self)
        size = self.slices.global_batch
        everyone.slices = RankSlices(batch_size=size, lanes=self._lanes, rank=0, num_ranks=1)
        streams, sequences = everyone.sequences(cursor, np.array([step]))
        return streams[0], sequences[0]

    def _look_up(self, cursor: Cursor, places: Ints) -> tuple[Ints, Ints]:
        if self._mixture is None:
            draws = cursor.before[0] + places
            return np.zeros_like(places), self._orders[0].sequences(draws)
        streams, draws = self._mixture.draws(cursor.epoch, places, cursor.before)
        sequences = np.empty_like(places)
        for number, order in enumerate(self._orders):
            chosen = np.flatnonzero(streams == number)
            if chosen.size:
                sequences[chosen] = order.sequences(draws[chosen])
        return streams, sequences
