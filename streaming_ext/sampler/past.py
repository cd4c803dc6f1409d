"""The steps of an epoch that came before settings were changed in it.

An epoch that goes on with steps of another size does so from its place: what came before was cut
into steps by the sizes of then, and is told so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from streaming_ext.sampler.rank_slices import RankSlices
from streaming_ext.sampler.stages import Stage


@dataclass(frozen=True, kw_only=True, slots=True)
class PastSteps:
    """Steps that were alike, one behind the other.

    Attributes:
        steps: how many.
        global_batch: sequences a step, over all ranks.
        length: tokens a sequence.
    """

    steps: int
    global_batch: int
    length: int

    def row_count(self, longest: int) -> int:
        """Places of an epoch that one of them holds, which are rows of the longest length."""
        return self.global_batch * self.length // longest


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What came of an epoch before settings were changed in it.

    Attributes:
        steps: from the beginning of the epoch to the last change of sizes.
        reordered: first places of the epoch whose sequences came in an order that today's settings
            do not tell: a seed was changed, for example.
    """

    steps: tuple[PastSteps, ...] = ()
    reordered: int = 0

    def places(self, longest: int) -> int:
        """Places of the epoch that its steps held."""
        return sum(each.steps * each.row_count(longest) for each in self.steps)

    def stages(self, *, place: int, longest: int, slices: RankSlices) -> list[Stage]:
        """Its steps behind a place; the first one is number 0.

        Args:
            place: between two steps.
            longest: tokens of a place.
            slices: of any step, for lanes and ranks; steps that these ranks do not divide are told
                as of one rank.
        """
        found: list[Stage] = []
        begin = step = 0
        for each in self.steps:
            rows = each.row_count(longest)
            behind = min(each.steps, max(0, place - begin) // rows)
            begin, steps = begin + behind * rows, each.steps - behind
            if not steps:
                continue
            rank, ranks = slices.rank, slices.num_ranks
            if each.global_batch % ranks:
                rank, ranks = 0, 1
            own = RankSlices(
                batch_size=each.global_batch // ranks,
                lanes=slices.lanes,
                rank=rank,
                num_ranks=ranks,
                pieces=longest // each.length,
            )
            found.append(
                Stage(first=step, steps=steps, place=begin, length=each.length, slices=own)
            )
            begin, step = begin + steps * rows, step + steps
        return found


def past_steps(stages: Sequence[Stage]) -> tuple[PastSteps, ...]:
    """Stages as they are remembered."""
    return tuple(
        PastSteps(
            steps=stage.steps,
            global_batch=stage.batch_size * stage.slices.num_ranks,
            length=stage.length,
        )
        for stage in stages
    )
