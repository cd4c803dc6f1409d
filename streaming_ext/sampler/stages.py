"""The steps of an epoch, in stages of steps that are alike.

Places of an epoch are rows of the longest sequence length. A step of G sequences of 1/k of that
length holds G / k whole rows, each cut into its k pieces, so a change of the length repeats and
loses no token. The size of a step is decided by the tokens that lie behind its beginning.

    lengths "0:4 32:8", batch 4, from token 0 of an epoch of 10 rows of 8 tokens:
    steps 0 and 1 hold rows 0, 1 and 2, 3 in pieces of 4 tokens: 32 tokens are behind
    step 2 holds rows 4 to 7 as they are; rows 8 and 9 make no step
"""

from dataclasses import dataclass

from streaming_ext.errors import UsageError
from streaming_ext.sampler.rank_slices import RankSlices
from streaming_ext.sampler.schedule import Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Steps of one size, one behind the other.

    Attributes:
        first: number of its first step.
        steps: how many there are.
        place: first place of the first step.
        length: tokens of a sequence.
        slices: of each step.
    """

    first: int
    steps: int
    place: int
    length: int
    slices: RankSlices

    @property
    def stop(self) -> int:
        """Number of the step behind the last one."""
        return self.first + self.steps

    @property
    def end(self) -> int:
        """The place behind the last step."""
        return self.place_of(self.stop)

    @property
    def batch_size(self) -> int:
        """Sequences a rank and step."""
        return self.slices.batch_size

    def together(self, ids: int) -> int:
        """How many steps have no more than so many ids a rank, 1 to 64."""
        return max(1, min(64, ids // (self.length * self.batch_size)))

    def place_of(self, step: int) -> int:
        """The first place of a step."""
        return self.place + (step - self.first) * self.slices.global_batch

    def step_of(self, place: int) -> int:
        """The step that holds a place."""
        return self.first + (place - self.place) // self.slices.global_batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """A sequence in an epoch: its number on disk, its length, the step, and the rank."""

    step: int
    rank: int
    sequence: int
    length: int


@dataclass(frozen=True, slots=True)
class StepSizes:
    """How many sequences of what length a step holds, by the tokens behind its beginning.

    Attributes:
        global_batch: sequences a step, over all ranks.
        length: tokens a sequence; each divides the longest.
    """

    global_batch: Schedule
    length: Schedule

    def __post_init__(self) -> None:
        longest = self.longest
        at: int | None = 0
        while at is not None:
            batch, length = self.at(at)
            if longest % length:
                raise UsageError(
                    f"`sequence_length` is {length} from token {at:,} on, which does not divide "
                    f"the longest, {longest}. Choose lengths that do: no token is then lost or "
                    "comes twice where the length changes."
                )
            if batch % (longest // length):
                raise UsageError(
                    f"`global_batch` is {batch} from token {at:,} on, at `sequence_length` "
                    f"{length}: it must be a multiple of {longest // length}, so that a step "
                    f"holds whole rows of {longest} tokens."
                )
            at = self.next_change(at)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequences: of a place."""
        return self.length.largest

    @property
    def change(self) -> bool:
        """Whether steps of different sizes come."""
        return not (self.global_batch.constant and self.length.constant)

    def at(self, tokens: int) -> tuple[int, int]:
        """Sequences and their length in a step that begins at a number of tokens."""
        return int(self.global_batch.at(tokens)), int(self.length.at(tokens))

    def next_change(self, tokens: int) -> int | None:
        """Where the next entry of either schedule is."""
        changes = (self.global_batch.next_change(tokens), self.length.next_change(tokens))
        return min((change for change in changes if change is not None), default=None)

    def require_ranks(self, num_ranks: int) -> None:
        """Refuse a number of ranks that does not divide every step.

        Raises:
            UsageError: naming the step.
        """
        for point in self.global_batch.points:
            if int(point.value) % num_ranks:
                raise UsageError(
                    f"`global_batch` is {int(point.value)} from token {point.start:,} on, which "
                    f"{num_ranks} data-parallel ranks do not divide. Choose a multiple of "
                    f"{num_ranks}, or another number of ranks."
                )

    def require_epoch(self, places: int) -> None:
        """Refuse steps that no epoch holds: from there on each would be empty.

        Args:
            places: of an epoch, rows of the longest length.

        Raises:
            UsageError: naming the step.
        """
        at: int | None = 0
        while at is not None:
            batch, length = self.at(at)
            rows = batch * length // self.longest
            if rows > places:
                raise UsageError(
                    f"`global_batch` is {batch} from token {at:,} on, at `sequence_length` "
                    f"{length}: a step takes {rows} sequences of {self.longest} tokens, and an "
                    f"epoch has {places}. Lower global_batch, or raise epoch_size."
                )
            at = self.next_change(at)

    def stages(self, *, place: int, end: int, tokens: int, slices: RankSlices) -> list[Stage]:
        """The stages of an epoch behind a place; what makes no whole step is left out.

        Args:
            place: where the first step begins.
            end: places of the epoch.
            tokens: of training at place 0.
            slices: of any step, for lanes and ranks.
        """
        stages: list[Stage] = []
        step = 0
        while True:
            behind = tokens + place * self.longest
            batch, length = self.at(behind)
            pieces = self.longest // length
            rows = batch // pieces
            steps = (end - place) // rows
            change = self.next_change(behind)
            if change is not None:  # the last step of a stage may go beyond where it ends
                steps = min(steps, -(-(change - behind) // (rows * self.longest)))
            if not steps:
                return stages
            own = RankSlices(
                batch_size=batch // slices.num_ranks,
                lanes=slices.lanes,
                rank=slices.rank,
                num_ranks=slices.num_ranks,
                pieces=pieces,
            )
            stages.append(Stage(first=step, steps=steps, place=place, length=length, slices=own))
            step, place = step + steps, place + steps * rows
