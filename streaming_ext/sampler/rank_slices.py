"""Which places of an epoch each rank reads in each step.

Step t of global batch G holds the places [t G, (t + 1) G), whatever the number of ranks. Sorted
by lane, they are cut into one slice a rank: with N nodes dividing the lanes, and the lanes
dividing the global batch, a node reads the lanes of its own and no others.
"""

from dataclasses import dataclass, field

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.errors import UsageError


def step_layout(*, global_batch: int, lanes: int, phase: int) -> Ints:
    """Offsets of a step's places in the order in which ranks take them: shape (global_batch,).

    Args:
        global_batch: places a step.
        lanes: number of lanes.
        phase: lane of the step's first place.
    """
    lane = (phase + np.arange(global_batch)) % lanes
    return np.argsort(lane, kind="stable")


@dataclass(frozen=True, kw_only=True)
class RankSlices:
    """One rank's slice of every step.

    Attributes:
        batch_size: sequences a rank and step.
        lanes: number of lanes.
        rank: this data-parallel rank.
        num_ranks: number of data-parallel ranks.
        pieces: sequences that each place is cut into.
    """

    batch_size: int
    lanes: int
    rank: int
    num_ranks: int
    pieces: int = 1
    _layouts: dict[int, Ints] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"`batch_size` must be at least 1, got {self.batch_size}.")
        if not 0 <= self.rank < self.num_ranks:
            raise UsageError(
                f"`dp_rank` must be in [0, {self.num_ranks}), got {self.rank}. "
                "Pass dp_rank=... and dp_world_size=..., or launch with torchrun."
            )

    @property
    def global_batch(self) -> int:
        """Places a step over all ranks."""
        return self.batch_size * self.num_ranks // self.pieces

    @property
    def piece_numbers(self) -> Ints:
        """Which piece of its place each sequence of this rank is: (batch_size,)."""
        first = self.rank * self.batch_size
        return np.arange(first, first + self.batch_size) % self.pieces

    def steps(self, places: int, *, drop_last: bool) -> int:
        """Steps that `places` places make; the last one may be short unless dropped."""
        return places // self.global_batch if drop_last else -(-places // self.global_batch)

    def places(self, starts: Ints, *, shift: int) -> Ints:
        """The places of this rank in the steps that begin at `starts`.

        Args:
            starts: first place of each step, shape (steps,).
            shift: lane of the epoch's first place.

        Returns:
            shape (steps, batch_size).
        """
        phases = (starts + shift) % self.lanes
        # offsets: (steps, batch_size)
        if (phases == phases[0]).all():
            offsets = self._offsets(int(phases[0]))[None, :]
        else:
            offsets = np.stack([self._offsets(phase) for phase in phases.tolist()])
        result: Ints = starts[:, None] + offsets
        return result

    def rank_of(self, place: int, piece: int = 0, *, start: int, shift: int) -> int:
        """The rank that reads a piece of a place.

        Args:
            place: which one.
            piece: of it.
            start: first place of its step.
            shift: see `places`.
        """
        layout = step_layout(
            global_batch=self.global_batch, lanes=self.lanes, phase=(start + shift) % self.lanes
        )
        at = int(np.flatnonzero(layout == place - start)[0])
        return (at * self.pieces + piece) // self.batch_size

    def _offsets(self, phase: int) -> Ints:
        if phase not in self._layouts:
            layout = step_layout(global_batch=self.global_batch, lanes=self.lanes, phase=phase)
            begin = self.rank * self.batch_size
            # Each place as often as it has pieces, then this rank's part of them.
            own = np.arange(begin, begin + self.batch_size) // self.pieces
            self._layouts[phase] = layout[own]
        return self._layouts[phase]
