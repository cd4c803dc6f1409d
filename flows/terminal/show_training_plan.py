"""What `shardmill trace --plan` tells: the phases of training, as a table and as a picture."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console

from flows.terminal.columns import show_table
from flows.terminal.drawing import COLOURS, svg
from flows.terminal.visible import count_text
from streaming_ext.training.training_plan import PlannedPhase, TrainingPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = 1.7  # inches


def show_training_plan(plan: TrainingPlan, console: Console) -> None:
    """A row a phase, and their sum."""
    columns, *rows = plan.rows()
    show_table([dict(zip(columns, row, strict=True)) for row in rows], console)


def draw_training_plan(plan: TrainingPlan) -> str:
    """An SVG of batch, length and fraction of each stream, over the tokens of training."""
    lines: list[tuple[str, Callable[[PlannedPhase], int]]] = [
        ("global batch, in sequences", lambda phase: phase.global_batch),
        ("tokens a sequence", lambda phase: phase.sequence_length),
        ("tokens a step", lambda phase: phase.global_batch * phase.sequence_length),
    ]
    mixed = len(plan.phases[0].fractions) > 1

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(len(lines) + mixed, 1, sharex=True, squeeze=False)[:, 0]
        for axes, colour, (title, value) in zip(panels, COLOURS, lines, strict=False):
            _phases(axes, plan, [value(phase) for phase in plan.phases], colour)
            axes.set_title(title)
        if mixed:
            _fractions(figure, panels[-1], plan)
        panels[-1].xaxis.set_major_formatter(lambda value, _: count_text(value))
        panels[-1].set_xlim(plan.phases[0].first_token, plan.phases[-1].stop_token)
        panels[-1].set_xlabel(f"tokens of training; {plan.steps:,} steps")

    return svg(0.5 + _PANEL * (len(lines) + mixed), draw)


def _phases(axes: "Axes", plan: TrainingPlan, values: list[int], colour: str) -> None:
    for phase, value in zip(plan.phases, values, strict=True):
        axes.fill_between(
            [phase.first_token, phase.stop_token],
            [value, value],
            color=colour,
            alpha=0.85,
            linewidth=0,
        )
    axes.set_ylim(0, max(values) * 1.15)
    axes.yaxis.set_major_formatter(lambda value, _: count_text(value))


def _fractions(figure: "Figure", axes: "Axes", plan: TrainingPlan) -> None:
    tokens = [plan.mixture[0].first_token] + [each.stop_token for each in plan.mixture]
    base = [0.0] * len(plan.mixture)
    for number, fractions in enumerate(
        zip(*(each.fractions for each in plan.mixture), strict=True)
    ):
        top = [a + b for a, b in zip(base, fractions, strict=True)]
        axes.stairs(
            top,
            tokens,
            baseline=base,
            fill=True,
            color=COLOURS[number % len(COLOURS)],
            alpha=0.85,
            label=f" stream {number}",
        )
        base = top
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title("fraction of each stream")
    if len(plan.mixture[0].fractions) <= len(COLOURS):
        figure.legend(loc="outside lower left", ncols=len(COLOURS))
