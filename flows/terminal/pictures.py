"""Pictures from matplotlib: SVG without a background, readable on light and dark pages."""

import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends import backend_svg  # noqa: F401  (loaded with the rest, not at the end)
from matplotlib.figure import Figure

from flows.terminal.printing import count_text

if TYPE_CHECKING:
    from streaming_ext.training.features.training_plan import TrainingPlan

# Tones of Okabe and Ito's palette, which colour-blind people can distinguish, moved towards a
# medium lightness, so that the contrast to white and to black is about the same.
MUTED = "#7b7f87"
TOKENIZE, RATIO = "#1f83c4", "#c46a9c"
SERIES = (TOKENIZE, "#d98c1c", "#149c76", RATIO, "#d9642b", "#4aa5d8", "#9c9230")
FONT = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_POINTS = 11.5  # of letters in a picture 5.2 inches wide: 11 pixels on a page of 400 pixels
_WIDTH = 5.2  # inches
_PANEL = 1.7  # inches
_STYLE: dict[Any, object] = {
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": _POINTS,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.titlesize": _POINTS,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",  # part of matplotlib, so the layout is the same everywhere
    "font.size": _POINTS,
    "grid.alpha": 0.28,
    "grid.color": MUTED,
    "legend.frameon": False,
    "legend.labelcolor": MUTED,
    "svg.fonttype": "none",  # keep text as text
    "svg.hashsalt": "shardmill",
    "text.color": MUTED,
    "text.parse_math": False,  # a dollar sign in a file name is no formula
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.major.size": 0,
}


def svg(height: float, draw: Callable[[Figure], None]) -> str:
    """Draw a picture that takes the width of its page.

    Args:
        height: the height in inches, for a width of 5.2 inches.
        draw: a function that fills the empty figure.
    """
    out = io.StringIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The browser's fonts have the letters that the font of the layout lacks.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure = Figure(figsize=(_WIDTH, height))
        draw(figure)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    picture = text[text.index("<svg") :].replace("'DejaVu Sans'", FONT.replace("'", "&#39;"))
    size = f'width="{_WIDTH * 72:g}pt" height="{height * 72:g}pt"'
    # A picture without a size fits its page.
    return picture.replace(size, "", 1)


def draw_training_plan(plan: "TrainingPlan") -> str:
    """Draw batch, sequence length and fractions of the streams over the tokens of training."""
    phases, last = plan.phases, plan.phases[-1]
    panels = (
        ("global batch, in sequences", [phase.global_batch for phase in phases]),
        ("tokens per sequence", [phase.sequence_length for phase in phases]),
        ("tokens per step", [phase.global_batch * phase.sequence_length for phase in phases]),
    )
    streams = len(last.fractions)
    count = len(panels) + (streams > 1)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(count, 1, sharex=True)
        edges = [*(phase.first_token for phase in phases), last.stop_token]
        for panel, (title, values) in zip(axes, panels, strict=False):
            panel.stairs(values, edges, fill=True, color=MUTED)
            panel.set_ylim(0, max(values) * 1.15)
            panel.yaxis.set_major_formatter(lambda value, _: count_text(value))
            panel.set_title(title)
        if streams > 1:
            fractions = zip(*(phase.fractions for phase in (*phases, last)), strict=True)
            labels = [f" stream {number}" for number in range(streams)]
            axes[-1].stackplot(edges, *fractions, labels=labels, colors=SERIES, step="post")
            axes[-1].set_ylim(0, 1)
            axes[-1].set_title("fraction of each stream")
            figure.legend(loc="outside lower left", ncols=4)
        axes[-1].xaxis.set_major_formatter(lambda value, _: count_text(value))
        axes[-1].set_xlim(edges[0], edges[-1])
        axes[-1].set_xlabel(f"tokens of training; {plan.steps:,} steps")

    return svg(0.5 + _PANEL * count, draw)
