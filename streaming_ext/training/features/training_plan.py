"""The steps of training before it starts: their number, their sizes and their tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from streaming_ext.base.errors import UsageError
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.state import Cursor


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPhase:
    """Steps of one epoch with one size and one mixture.

    Attributes:
        first_token: tokens of training before the phase.
        stop_token: tokens of training at its end.
        fractions: the fraction of each stream.
        epoch: the number of the epoch.
        step: the number of its first step, from the beginning of the plan.
        steps: the number of steps.
        global_batch: sequences per step, over all ranks.
        sequence_length: tokens per sequence.
    """

    first_token: int
    stop_token: int
    fractions: tuple[float, ...]
    epoch: int
    step: int
    steps: int
    global_batch: int
    sequence_length: int


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The phases of some epochs, one after another; a plan prints as a table.

    Attributes:
        phases: the phases.
    """

    phases: tuple[PlannedPhase, ...]

    @property
    def steps(self) -> int:
        """The steps of all phases, which a schedule of the learning rate needs."""
        return sum(phase.steps for phase in self.phases)

    @property
    def tokens(self) -> int:
        """The tokens of all steps."""
        return sum(phase.stop_token - phase.first_token for phase in self.phases)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table: a heading, a row per phase, and the sum."""
        streams = len(self.phases[0].fractions)
        shown = range(streams if streams > 1 else 0)
        head = ("epoch", "steps", "from step", "from token", "to token", "global batch", "length")
        rows = [(*head, *(f"stream {number}" for number in shown))]
        for phase in self.phases:
            numbers = (phase.epoch, phase.steps, phase.step, phase.first_token, phase.stop_token)
            sizes = (phase.global_batch, phase.sequence_length)
            fractions = (f"{phase.fractions[number]:.1%}" for number in shown)
            rows.append((*(f"{number:,}" for number in (*numbers, *sizes)), *fractions))
        total = ("all", f"{self.steps:,}", "", "", f"{self.tokens:,}", "", "")
        return [*rows, (*total, *("" for _ in shown))]

    def __str__(self) -> str:
        """Return the table as text with aligned columns."""
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def training_plan(plan: EpochPlan, start: Cursor, *, epochs: int) -> TrainingPlan:
    """Plan the phases of some whole epochs.

    Args:
        plan: the plan of any rank.
        start: a cursor of the first epoch.
        epochs: the number of epochs.

    Raises:
        UsageError: `epochs` is below 1, or a stream reaches its limit in one of the epochs.
    """
    if epochs < 1:
        raise UsageError(f"`epochs` of a plan must be at least 1, got {epochs}.")
    phases: list[PlannedPhase] = []
    cursor, before = replace(start, position=0), 0
    for _ in range(epochs):
        phases += _of_epoch(plan, cursor, before)
        before = phases[-1].step + phases[-1].steps
        cursor = plan.next_epoch(cursor)
    return TrainingPlan(tuple(phases))


def _of_epoch(plan: EpochPlan, cursor: Cursor, before: int) -> Iterator[PlannedPhase]:
    for phase in plan.phases(cursor):
        edges = {phase.first, phase.stop}
        if plan.mixing is not None:  # a new mixture begins with a step
            width = phase.rows * plan.length
            start = cursor.tokens + phase.position * plan.length
            changes = plan.mixing.changes(start, cursor.tokens + phase.end * plan.length)
            edges |= {phase.first - (start - change) // width for change in changes}
        for first, stop in pairwise(sorted(edge for edge in edges if edge <= phase.stop)):
            begin = replace(cursor, position=phase.position_of(first))
            end = replace(cursor, position=min(phase.position_of(stop), plan.epoch_size))
            seen = [b - a for a, b in zip(plan.seen(begin), plan.seen(end), strict=True)]
            yield PlannedPhase(
                first_token=plan.tokens_seen(begin),
                stop_token=plan.tokens_seen(end),
                fractions=tuple(count / sum(seen) for count in seen),
                epoch=cursor.epoch,
                step=before + first,
                steps=stop - first,
                global_batch=phase.global_batch,
                sequence_length=phase.length,
            )
