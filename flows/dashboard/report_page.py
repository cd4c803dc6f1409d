"""The report of a run for people, as one self-contained page and as a Prefect artifact.

A colour has the same meaning in all pictures.
"""

import base64
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from markdown_it import MarkdownIt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact

from flows.terminal.pictures import MUTED, RATIO, TOKENIZE, svg
from flows.terminal.printing import (
    bytes_text,
    count_text,
    counted,
    escaped,
    parts_text,
    shortened,
    spec_facts,
    time_text,
    visible,
)
from streaming_ext.format.layout import DUPLICATES_FOLDER
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from tasks.core.check.inspect import SourceLoss, source_losses
from tasks.core.reporting.figures import Figures, Group, Throughput, make_figures
from tasks.core.reporting.lengths import Lengths, sample_lengths
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import RunReport, report_path
from tasks.core.shard.run_plan import RunPlan

_MOST_LETTERS = 24
_LENGTH_STEPS = 2  # bars per doubling of the length
_MOST_SECONDS = 180  # longer runs have an axis in minutes
_ROW = 0.32  # inches per bar
REPORT = "shard-report"  # key of the report's artifact


class _Markdown(MarkdownIt):
    """A Markdown parser that allows the report's own pictures, and no links."""

    def validateLink(self, url: str) -> bool:  # noqa: N802  (the library's name)
        return url.startswith("data:image/svg+xml;base64,")


class ReportPage:
    """A report as Markdown, and as a web page.

    Attributes:
        headline: the result of the run in one line.
        markdown: the report with its pictures, for Prefect's interfaces.
    """

    def __init__(
        self,
        figures: Figures,
        spec: DatasetSpec,
        *,
        sources: Sequence[str] = (),
        manifest: Manifest | None = None,
        losses: Sequence[SourceLoss] = (),
    ) -> None:
        """Make the report.

        Args:
            figures: the figures of the run.
            spec: the specification of the dataset.
            sources: the sources as the run names them.
            manifest: the manifest of the dataset, if it is published.
            losses: the near copies of each source file.
        """
        import jinja2

        report, total = figures.report, figures.total
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("flows.dashboard", package_path=""),
            autoescape=jinja2.select_autoescape(["html.jinja"]),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "plain": escaped,
            "count": count_text,
            "bytes": bytes_text,
            "took": time_text,
            "counted": counted,
        }
        state = "published" if report.published else "not published"
        if report.failed:
            state = f"{len(report.failed):,} of {report.files:,} parts failed"
        tokens, text = count_text(total.tokens), bytes_text(total.text_bytes)
        self.headline = f"{state}: {tokens} tokens in {text}"
        self._name = f"Report of {visible(report.output)}"
        self.markdown = self._templates.get_template("report.md.jinja").render(
            state=state,
            figures=figures,
            report=report,
            total=total,
            documents=total.documents - report.duplicate_documents,
            parts=parts_text(report),
            sources=sources,
            splits=manifest.splits if manifest is not None else {},
            spec=spec,
            losses=losses,
            spec_facts=spec_facts(spec),
            charts={
                title: base64.b64encode(svg.encode()).decode()
                for title, svg in draw_charts(figures).items()
            },
            paths={
                "copies": f"{report.output}/{DUPLICATES_FOLDER}",
                "record": f"{report.output}/{report_path(report, '.json')}",
            },
        )

    def html(self) -> str:
        """Return a web page without scripts that loads nothing."""
        parser = _Markdown("commonmark", {"html": False}).enable("table")
        return self._templates.get_template("page.html.jinja").render(
            name=self._name, report=parser.render(self.markdown)
        )


def leave_report(report: RunReport, plan: RunPlan, storage: Storage, progress: RunProgress) -> None:
    """Put the report on the output and into the dashboard."""
    path = report_path(report, ".html")
    parts = sorted([*plan.earlier, *report.parts], key=lambda part: part.part)
    try:
        lengths = sample_lengths(storage, report.merged if plan.spec.two_phases else parts)
        manifest = read_manifest(storage) if report.published else None
        page = ReportPage(
            make_figures(report, plan.earlier, plan.spec, lengths),
            plan.spec,
            sources=plan.sources,
            manifest=manifest,
            losses=source_losses(storage, manifest) if manifest else (),
        )
        storage.put(path, page.html().encode())
        progress.page = f"{report.output}/{path}"
        create_markdown_artifact(page.markdown, key=REPORT, description=page.headline)
    except Exception as error:  # noqa: BLE001  the dataset is complete without it
        get_run_logger().warning("There is no report: %s: %s", type(error).__name__, error)


def draw_charts(figures: Figures) -> dict[str, str]:
    """Return title -> SVG, in the order of the report, for charts that have figures."""
    groups = figures.groups
    charts: tuple[tuple[str, float, Any, Any], ...] = (
        ("Tokens by source", 0.75 + _ROW * len(groups), _sources, groups),
        ("Document lengths", 2.6, _lengths, figures.lengths.documents and figures.lengths),
        ("Throughput over time", 2.6, _throughput, figures.throughput),
    )
    return {title: svg(height, partial(draw, data)) for title, height, draw, data in charts if data}


def _lengths(lengths: Lengths, figure: Figure) -> None:
    axes = figure.add_subplot()
    starts, ends, counts = np.array(lengths.histogram(_LENGTH_STEPS), float).T
    axes.bar(starts, counts, (ends - starts) * 0.94, align="edge", color=TOKENIZE)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: count_text(value))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: count_text(value))
    axes.set_xlabel("tokens per document")
    axes.set_ylabel("documents")
    axes.set_ylim(0, counts.max() * 1.22)  # room for the labels above the bars
    for fraction, name, align in ((0.5, "median", "right"), (0.9, "90 %", "left")):
        value = max(lengths.quantile(fraction), 1)
        axes.axvline(value, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"{name} {value:,}",
            (value, 0.99),
            xytext=(5 if align == "left" else -5, 0),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha=align,
            va="top",
        )


def _sources(groups: Sequence[Group], figure: Figure) -> None:
    """Draw the tokens of each source as a bar, and its bytes per token as a point to the right."""
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    _name_rows(left, [group.name for group in groups])
    tokens = [group.tokens for group in groups]
    left.barh(range(len(groups)), tokens, 0.66, color=TOKENIZE)
    left.set_title("tokens")
    left.set_xlim(0, max(tokens) * 1.25 or 1)
    ratios = [group.bytes_per_token for group in groups]
    right.scatter(ratios, range(len(groups)), s=34, color=RATIO)
    low, high = min(ratios), max(ratios)
    room = max((high - low) * 0.25, 0.05)
    right.set_xlim(low - room, high + room * 3)
    right.set_title("bytes per token")
    right.tick_params(labelleft=False)
    for row, (count, ratio) in enumerate(zip(tokens, ratios, strict=True)):
        _label(left, count_text(count), count, row)
        _label(right, f"{ratio:.2f}", ratio, row)


def _throughput(rates: Throughput, figure: Figure) -> None:
    axes = figure.add_subplot()
    in_minutes = rates.edges[-1] > _MOST_SECONDS
    edges, values = rates.edges / (60 if in_minutes else 1), rates.rates / 1e6
    axes.stairs(values, edges, fill=True, color=TOKENIZE)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, values.max() * 1.12)
    axes.set_xlabel("minutes" if in_minutes else "seconds")
    axes.set_ylabel("MB of text per second")


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows from the top; there is no scale, since each bar has a label."""
    shown = [shortened(visible(name), _MOST_LETTERS) for name in names]
    axes.set_yticks(range(len(names)), shown)
    axes.invert_yaxis()


def _label(axes: Axes, text: str, x: float, y: float) -> None:
    axes.annotate(text, (x, y), xytext=(7, 0), textcoords="offset points", va="center")
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
