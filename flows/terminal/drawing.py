"""Drawing with matplotlib: SVG without a background, in tones that read on light and on dark."""

import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of about the same contrast to white and to black; told apart by those who do not see all colours.
MUTED = "#7b7f87"
COLOURS = ("#4a8fd4", "#e08d3c", "#3aa394", "#a07bd0", "#d2668c", "#96993a", "#7b7f87")
FONT = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_WIDTH = 6.4  # inches of 72 points; a browser scales to the width that there is
_STYLE: dict[Any, object] = {
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 10.5,
    "axes.linewidth": 0.8,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the layout is the same everywhere
    "font.size": 10.5,
    "grid.alpha": 0.28,
    "grid.color": MUTED,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.labelcolor": MUTED,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "shardmill",
    "text.color": MUTED,
    "text.parse_math": False,  # a dollar in a file name is a dollar
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.major.size": 0,
}


def load_drawing() -> None:
    """Load what drawing needs, in the shadow of other work: it takes a while."""
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401


def svg(height: float, draw: "Callable[[Figure], None]") -> str:
    """A picture of so many inches, which takes the width that there is.

    Args:
        height: inches, for a width of eight.
        draw: given the empty figure, fills it.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    out = io.StringIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The browser has the letters that the font of the layout lacks.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure = Figure(figsize=(_WIDTH, height))
        draw(figure)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    picture = text[text.index("<svg") :].replace("'DejaVu Sans'", FONT.replace("'", "&#39;"))
    size = f'width="{_WIDTH * 72:g}pt" height="{height * 72:g}pt"'
    assert size in picture  # noqa: S101  (left out, so that the picture takes the room that there is)
    return picture.replace(size, "", 1)
