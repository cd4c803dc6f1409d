"""The steps of training before it starts: how many, of what size, over which tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from streaming_ext.base.errors import UsageError
from streaming_ext.order.epoch_plan import Cursor, EpochPlan
from streaming_ext.order.mixture import WINDOW_ROWS
from streaming_ext.order.steps import Stage

_LOOKS: Final = 200  # at the shares of the streams in an epoch, at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """What each stream has of some tokens of training.

    Attributes:
        first_token: where they begin.
        stop_token: where they end.
        shares: of each stream.
    """

    first_token: int
    stop_token: int
    shares: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStage:
    """Steps of one epoch that are alike: of one size, and of one mixture or one ramp of it.

    Attributes:
        epoch: its number.
        step: number of its first step, from the beginning of the plan.
        steps: how many there are.
        first_token: tokens of training that lie before it.
        stop_token: tokens that lie behind its last step.
        global_batch: sequences a step, over all ranks.
        sequence_length: tokens a sequence.
        shares: of the tokens that each stream has in it.
    """

    epoch: int
    step: int
    steps: int
    first_token: int
    stop_token: int
    global_batch: int
    sequence_length: int
    shares: tuple[float, ...]

    @property
    def tokens(self) -> int:
        """Of its steps."""
        return self.stop_token - self.first_token


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The stages of some epochs, one behind the other; as text, a table.

    Attributes:
        stages: the steps.
        mixture: the shares of the streams, looked at more often.
    """

    stages: tuple[PlannedStage, ...]
    mixture: tuple[Shares, ...]

    @property
    def steps(self) -> int:
        """Of all stages: what a learning-rate schedule needs to know."""
        return sum(stage.steps for stage in self.stages)

    @property
    def tokens(self) -> int:
        """Of all steps."""
        return sum(stage.tokens for stage in self.stages)

    def rows(self) -> list[tuple[str, ...]]:
        """The table: a heading, a row a stage, and the sum."""
        streams = len(self.stages[0].shares)
        shares = [f"stream {number}" for number in range(streams)] if streams > 1 else []
        head = ("epoch", "steps", "from step", "from token", "to token", "global batch", "length")
        rows = [(*head, *shares)]
        for stage in self.stages:
            told = [f"{share:.1%}" for share in stage.shares] if streams > 1 else []
            rows.append(
                (
                    f"{stage.epoch}",
                    f"{stage.steps:,}",
                    f"{stage.step:,}",
                    f"{stage.first_token:,}",
                    f"{stage.stop_token:,}",
                    f"{stage.global_batch:,}",
                    f"{stage.sequence_length:,}",
                    *told,
                )
            )
        total = ("all", f"{self.steps:,}", "", "", f"{self.tokens:,}", "", "")
        return [*rows, (*total, *[""] * len(shares))]

    def __str__(self) -> str:
        """The table, columns side by side."""
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def training_plan(plan: EpochPlan, start: Cursor, *, epochs: int) -> TrainingPlan:
    """The stages of some whole epochs.

    Args:
        plan: any rank's.
        start: a cursor of the first epoch.
        epochs: how many.

    Raises:
        UsageError: less than one epoch, or a stream reaches its limit in one of them.
    """
    if epochs < 1:
        raise UsageError(f"`epochs` of a plan must be at least 1, got {epochs}.")
    stages: list[PlannedStage] = []
    mixture: list[Shares] = []
    cursor, before = replace(start, place=0), 0
    for _ in range(epochs):
        stages += _of_epoch(plan, cursor, before)
        mixture += _shares_of_epoch(plan, cursor)
        before = stages[-1].step + stages[-1].steps
        cursor = plan.next_epoch(cursor)
    return TrainingPlan(tuple(stages), tuple(mixture))


def _of_epoch(plan: EpochPlan, cursor: Cursor, before: int) -> Iterator[PlannedStage]:
    for stage in plan.stages(cursor):
        edges = [stage.first, *_mixture_changes(plan, cursor, stage), stage.stop]
        for first, stop in pairwise(edges):
            begin = replace(cursor, place=stage.place_of(first))
            end = replace(cursor, place=min(stage.place_of(stop), plan.epoch_size))
            yield PlannedStage(
                epoch=cursor.epoch,
                step=before + first,
                steps=stop - first,
                first_token=plan.tokens_seen(begin),
                stop_token=plan.tokens_seen(end),
                global_batch=stage.global_batch,
                sequence_length=stage.length,
                shares=_shares(plan, begin, end),
            )


def _shares(plan: EpochPlan, begin: Cursor, end: Cursor) -> tuple[float, ...]:
    seen = [b - a for a, b in zip(plan.seen(begin), plan.seen(end), strict=True)]
    return tuple(count / sum(seen) for count in seen)


def _shares_of_epoch(plan: EpochPlan, cursor: Cursor) -> list[Shares]:
    """The shares of the streams in parts of an epoch of equal length."""
    stop = min(plan.stages(cursor)[-1].end, plan.epoch_size)
    windows = stop // (plan.row * WINDOW_ROWS)  # within one, rows are shuffled
    looks = max(1, min(_LOOKS, windows)) if len(cursor.before) > 1 else 1
    cursors = [replace(cursor, place=stop * look // looks) for look in range(looks + 1)]
    return [
        Shares(
            first_token=plan.tokens_seen(begin),
            stop_token=plan.tokens_seen(end),
            shares=_shares(plan, begin, end),
        )
        for begin, end in pairwise(cursors)
    ]


def _mixture_changes(plan: EpochPlan, cursor: Cursor, stage: Stage) -> list[int]:
    """The steps of a stage with which another mixture begins."""
    mixing = plan.mixing
    if mixing is None:
        return []
    width = stage.rows * plan.length
    start = cursor.tokens + stage.place * plan.length
    changes = mixing.changes(start, start + stage.steps * width)
    steps = {stage.first + -(-(change - start) // width) for change in changes}
    return sorted(step for step in steps if step < stage.stop)
