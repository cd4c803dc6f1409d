"""Which places of an epoch each rank reads in each step.

Step t of global batch G holds the places [t G, (t + 1) G), whatever the number of ranks. Sorted
by lane, they are cut into one slice a rank: with N nodes dividing the lanes, and the lanes
dividing the global batch, a node reads the lanes of its own and no others.
"""

from dataclasses import dataclass, field

import numpy as np

from streaming_ext.errors import UsageError
from streaming_ext.sampler.order import Ints


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
        batch_size: places a rank and step.
        lanes: number of lanes.
        rank: this data-parallel rank.
        num_ranks: number of data-parallel ranks.
    """

    batch_size: int
    lanes: int
    rank: int
    num_ranks: int
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
        return self.batch_size * self.num_ranks

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

    def rank_of(self, place: int, *, shift: int) -> int:
        """The rank that reads a place; see `places` for `shift`."""
        start = place - place % self.global_batch
        layout = step_layout(global_batch=self.global_batch, lanes=self.lanes,
                             phase=(start + shift) % self.lanes)  # fmt: skip
        return int(np.flatnonzero(layout == place - start)[0]) // self.batch_size

    def _offsets(self, phase: int) -> Ints:
        if phase not in self._layouts:
            layout = step_layout(global_batch=self.global_batch, lanes=self.lanes, phase=phase)
            begin = self.rank * self.batch_size
            self._layouts[phase] = layout[begin : begin + self.batch_size].copy()
        return self._layouts[phase]
