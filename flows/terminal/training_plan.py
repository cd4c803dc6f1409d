"""The plan of `shardmill trace --plan`: the phases of training, as a table and as a picture."""

from matplotlib.figure import Figure
from rich.console import Console

from flows.terminal.pictures import MUTED, SERIES, svg
from flows.terminal.printing import count_text
from flows.terminal.tables import show_table
from streaming_ext.training.training_plan import TrainingPlan

_PANEL = 1.7  # inches


def show_training_plan(plan: TrainingPlan, console: Console) -> None:
    """A row for each phase, and their sum."""
    columns, *rows = plan.rows()
    show_table([dict(zip(columns, row, strict=True)) for row in rows], console)


def draw_training_plan(plan: TrainingPlan) -> str:
    """An SVG of batch, length and fractions of the streams, over the tokens of training."""
    phases, last = plan.phases, plan.phases[-1]
    panels = {
        "global batch, in sequences": [phase.global_batch for phase in phases],
        "tokens a sequence": [phase.sequence_length for phase in phases],
        "tokens a step": [phase.global_batch * phase.sequence_length for phase in phases],
    }
    streams = len(last.fractions)
    count = len(panels) + (streams > 1)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
        edges = [*(phase.first_token for phase in phases), last.stop_token]
        for panel, (title, values) in zip(axes, panels.items(), strict=False):
            panel.stairs(values, edges, fill=True, color=MUTED)
            panel.set_ylim(0, max(values) * 1.15)
            panel.yaxis.set_major_formatter(lambda value, _: count_text(value))
            panel.set_title(title)
        if streams > 1:
            mixture = [*plan.mixture, plan.mixture[-1]]
            tokens = [*(each.first_token for each in plan.mixture), last.stop_token]
            fractions = zip(*(each.fractions for each in mixture), strict=True)
            labels = [f" stream {number}" for number in range(streams)]
            axes[-1].stackplot(tokens, *fractions, labels=labels, colors=SERIES, step="post")
            axes[-1].set_ylim(0, 1)
            axes[-1].yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            axes[-1].set_title("fraction of each stream")
            if streams <= len(SERIES):
                figure.legend(loc="outside lower left", ncols=4)
        axes[-1].xaxis.set_major_formatter(lambda value, _: count_text(value))
        axes[-1].set_xlim(edges[0], edges[-1])
        axes[-1].set_xlabel(f"tokens of training; {plan.steps:,} steps")

    return svg(0.5 + _PANEL * count, draw)
