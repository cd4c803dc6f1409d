"""The pictures of a report."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flows.terminal.drawing import COLOURS, MUTED, svg
from flows.terminal.visible import count_text, visible
from tasks.core.reporting.figures import Figures, Group, Throughput
from tasks.core.reporting.lengths import Lengths
from tasks.core.reporting.report import PartTimes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LETTERS = 32
_LENGTH_STEPS = 2  # classes to each doubling


def draw_charts(figures: Figures) -> dict[str, str]:
    """Title -> SVG, in the order in which to show them; without those that nothing is known for."""
    charts: dict[str, str] = {}
    if figures.lengths.documents:
        charts["Document lengths"] = svg(2.6, lambda figure: _lengths(figure, figures.lengths))
    if figures.groups:
        height = 0.75 + 0.3 * len(figures.groups)
        charts["Tokens by source"] = svg(height, lambda figure: _bars(figure, figures.groups))
    over_time = figures.throughput
    if over_time is not None:
        charts["Throughput over time"] = svg(2.6, lambda figure: _rates(figure, over_time))
    if figures.slowest:
        height = 0.95 + 0.3 * len(figures.slowest)
        charts["Slowest parts"] = svg(height, lambda figure: _slowest(figure, figures.slowest))
    return charts


def _lengths(figure: "Figure", lengths: Lengths) -> None:
    axes = figure.add_subplot()
    bars = lengths.histogram(_LENGTH_STEPS)
    starts = np.array([start for start, _, _ in bars], float)
    widths = np.array([end - start for start, end, _ in bars], float)
    counts = [documents for _, _, documents in bars]
    axes.bar(starts, counts, widths * 0.94, align="edge", color=COLOURS[0])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: count_text(value))
    axes.set_xlabel("tokens a document")
    axes.set_ylabel("documents")
    axes.set_ylim(0, max(counts) * 1.22)
    for share, name, side in ((0.5, "median", -1), (0.9, "90 %", 1)):
        value = lengths.quantile(share)
        axes.axvline(max(value, 1), color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"{name} {value:,}",
            (max(value, 1), 0.99),
            xytext=(side * 5, 0),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="top",
        )


def _bars(figure: "Figure", groups: tuple[Group, ...]) -> None:
    """A bar a source, and beside it its bytes a token."""
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    names = range(len(groups))
    tokens = [group.tokens for group in groups]
    left.barh(names, tokens, 0.66, color=COLOURS[0])
    left.set_yticks(names, [_short(group.name) for group in groups])
    left.invert_yaxis()
    left.set_title("tokens")
    left.set_xlim(0, max(tokens) * 1.16 or 1)
    for name, value in zip(names, tokens, strict=True):
        _beside(left, count_text(value), value, name)
    _bare(left)
    ratios = [group.bytes_per_token for group in groups]
    right.scatter(ratios, names, s=34, color=COLOURS[1])
    low, high = min(ratios), max(ratios)
    room = max((high - low) * 0.25, 0.05)
    right.set_xlim(low - room, high + room * 2)
    for name, ratio in zip(names, ratios, strict=True):
        _beside(right, f"{ratio:.2f}", ratio, name, points=8)
    right.set_title("bytes of text a token")
    right.tick_params(labelleft=False)
    _bare(right)
    right.grid(visible=True, axis="y")


def _rates(figure: "Figure", over_time: Throughput) -> None:
    axes = figure.add_subplot()
    edges, unit = _time_unit(over_time.edges)
    base = np.zeros(len(edges) - 1)
    for colour, (host, rates) in zip(COLOURS, over_time.rates.items(), strict=False):
        top = base + rates / 1e6
        label = f" {_short(host)}"  # a legend leaves out what begins with "_"
        axes.stairs(top, edges, baseline=base, fill=True, color=colour, alpha=0.85, label=label)
        base = top
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, float(base.max()) * 1.12)
    axes.set_xlabel(unit)
    axes.set_ylabel("MB of text a second")
    if len(over_time.rates) > 1:
        figure.legend(loc="outside upper left", ncols=4)


def _slowest(figure: "Figure", parts: tuple[PartTimes, ...]) -> None:
    axes = figure.add_subplot()
    names = range(len(parts))
    base = np.zeros(len(parts))
    for colour, field in zip(COLOURS, ("fetch", "tokenize", "write"), strict=False):
        seconds = np.array([getattr(part, f"{field}_seconds") for part in parts])
        if seconds.any():
            axes.barh(names, seconds, 0.66, left=base, color=colour, label=field)
        base += seconds
    axes.set_yticks(names, [_short("/".join(part.source.split("/")[-2:])) for part in parts])
    axes.invert_yaxis()
    axes.set_xlim(0, float(base.max()) * 1.14 or 1)
    for name, seconds in zip(names, base, strict=True):
        _beside(axes, f"{seconds:,.{2 if seconds < 10 else 0}f} s", seconds, name)
    _bare(axes)
    figure.legend(loc="outside upper left", ncols=3)


def _beside(axes: "Axes", text: str, x: float, y: float, *, points: float = 5) -> None:
    axes.annotate(text, (x, y), xytext=(points, 0), textcoords="offset points", va="center")


def _bare(axes: "Axes") -> None:
    """Bars with their figures beside them need no scale."""
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def _time_unit(seconds: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], str]:
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds[-1] >= 2 * size:
            return seconds / size, unit
    return seconds, "seconds"


def _short(name: str) -> str:
    """A name in the room that a label has; the end tells files apart."""
    shown = visible(name)
    return shown if len(shown) <= _MOST_LETTERS else f"…{shown[1 - _MOST_LETTERS :]}"
