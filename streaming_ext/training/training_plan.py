"""The steps of training before it starts: how many, of what size, over which tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from streaming_ext.base.errors import UsageError
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.mixture import WINDOW_ROWS
from streaming_ext.order.state import Cursor
from streaming_ext.order.steps import Phase

_LOOKS: Final = 200  # at the fractions of the streams in an epoch, at most


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureSpan:
    """What each stream has of some tokens of training.

    Attributes:
        first_token: where they begin.
        stop_token: where they end.
        fractions: of each stream.
    """

    first_token: int
    stop_token: int
    fractions: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPhase:
    """Steps of one epoch that are alike: of one size, and of one mixture or one ramp of it.

    Attributes:
        epoch: its number.
        step: number of its first step, from the beginning of the plan.
        steps: how many there are.
        first_token: tokens of training that lie before it.
        stop_token: tokens that lie behind its last step.
        global_batch: sequences a step, over all ranks.
        sequence_length: tokens a sequence.
        fractions: of the tokens that each stream has in it.
    """

    epoch: int
    step: int
    steps: int
    first_token: int
    stop_token: int
    global_batch: int
    sequence_length: int
    fractions: tuple[float, ...]

    @property
    def tokens(self) -> int:
        """Of its steps."""
        return self.stop_token - self.first_token


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The phases of some epochs, one behind the other; as text, a table.

    Attributes:
        phases: the steps.
        mixture: the fractions of the streams, looked at more often.
    """

    phases: tuple[PlannedPhase, ...]
    mixture: tuple[MixtureSpan, ...]

    @property
    def steps(self) -> int:
        """Of all phases: what a learning-rate schedule needs to know."""
        return sum(phase.steps for phase in self.phases)

    @property
    def tokens(self) -> int:
        """Of all steps."""
        return sum(phase.tokens for phase in self.phases)

    def rows(self) -> list[tuple[str, ...]]:
        """The table: a heading, a row a phase, and the sum."""
        streams = len(self.phases[0].fractions)
        fractions = [f"stream {number}" for number in range(streams)] if streams > 1 else []
        head = ("epoch", "steps", "from step", "from token", "to token", "global batch", "length")
        rows = [(*head, *fractions)]
        for phase in self.phases:
            told = [f"{fraction:.1%}" for fraction in phase.fractions] if streams > 1 else []
            rows.append(
                (
                    f"{phase.epoch}",
                    f"{phase.steps:,}",
                    f"{phase.step:,}",
                    f"{phase.first_token:,}",
                    f"{phase.stop_token:,}",
                    f"{phase.global_batch:,}",
                    f"{phase.sequence_length:,}",
                    *told,
                )
            )
        total = ("all", f"{self.steps:,}", "", "", f"{self.tokens:,}", "", "")
        return [*rows, (*total, *[""] * len(fractions))]

    def __str__(self) -> str:
        """The table, columns side by side."""
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def training_plan(plan: EpochPlan, start: Cursor, *, epochs: int) -> TrainingPlan:
    """The phases of some whole epochs.

    Args:
        plan: any rank's.
        start: a cursor of the first epoch.
        epochs: how many.

    Raises:
        UsageError: less than one epoch, or a stream reaches its limit in one of them.
    """
    if epochs < 1:
        raise UsageError(f"`epochs` of a plan must be at least 1, got {epochs}.")
    phases: list[PlannedPhase] = []
    mixture: list[MixtureSpan] = []
    cursor, before = replace(start, position=0), 0
    for _ in range(epochs):
        phases += _of_epoch(plan, cursor, before)
        mixture += _mixture_of_epoch(plan, cursor)
        before = phases[-1].step + phases[-1].steps
        cursor = plan.next_epoch(cursor)
    return TrainingPlan(tuple(phases), tuple(mixture))


def _of_epoch(plan: EpochPlan, cursor: Cursor, before: int) -> Iterator[PlannedPhase]:
    for phase in plan.phases(cursor):
        edges = [phase.first, *_mixture_changes(plan, cursor, phase), phase.stop]
        for first, stop in pairwise(edges):
            begin = replace(cursor, position=phase.position_of(first))
            end = replace(cursor, position=min(phase.position_of(stop), plan.epoch_size))
            yield PlannedPhase(
                epoch=cursor.epoch,
                step=before + first,
                steps=stop - first,
                first_token=plan.tokens_seen(begin),
                stop_token=plan.tokens_seen(end),
                global_batch=phase.global_batch,
                sequence_length=phase.length,
                fractions=_fractions(plan, begin, end),
            )


def _fractions(plan: EpochPlan, begin: Cursor, end: Cursor) -> tuple[float, ...]:
    seen = [b - a for a, b in zip(plan.seen(begin), plan.seen(end), strict=True)]
    return tuple(count / sum(seen) for count in seen)


def _mixture_of_epoch(plan: EpochPlan, cursor: Cursor) -> list[MixtureSpan]:
    """The fractions of the streams in parts of an epoch of equal length."""
    stop = min(plan.phases(cursor)[-1].end, plan.epoch_size)
    windows = stop // (plan.row * WINDOW_ROWS)  # within one, rows are shuffled
    looks = max(1, min(_LOOKS, windows)) if len(cursor.before) > 1 else 1
    cursors = [replace(cursor, position=stop * look // looks) for look in range(looks + 1)]
    return [
        MixtureSpan(
            first_token=plan.tokens_seen(begin),
            stop_token=plan.tokens_seen(end),
            fractions=_fractions(plan, begin, end),
        )
        for begin, end in pairwise(cursors)
    ]


def _mixture_changes(plan: EpochPlan, cursor: Cursor, phase: Phase) -> list[int]:
    """The steps of a phase with which another mixture begins."""
    mixing = plan.mixing
    if mixing is None:
        return []
    width = phase.rows * plan.length
    start = cursor.tokens + phase.position * plan.length
    changes = mixing.changes(start, start + phase.steps * width)
    steps = {phase.first + -(-(change - start) // width) for change in changes}
    return sorted(step for step in steps if step < phase.stop)
