"""What a run leaves for people: one self-contained page, and the same as an artifact of Prefect."""

import base64
from collections.abc import Iterable
from typing import Any

from markdown_it import MarkdownIt

from flows.dashboard.charts import draw_charts
from flows.terminal.visible import bytes_text, count_text, counted, duration_text, plain, visible
from streaming_ext.format.layout import DUPLICATES_FOLDER, MANIFEST
from streaming_ext.format.spec import DatasetSpec
from tasks.core.reporting.figures import Figures
from tasks.core.reporting.report import report_path

_MOST_FAILED = 50  # that are shown; the run's record holds all
_MOST_REASON = 400  # characters


class _Markdown(MarkdownIt):
    """Shows the report's own pictures, and links to nothing."""

    def validateLink(self, url: str) -> bool:  # noqa: N802  (the library's name)
        return url.startswith("data:image/svg+xml;base64,")


class ReportPage:
    """A report as Markdown, and as a page of its own.

    Attributes:
        headline: what a card has room for.
        markdown: the report as Prefect's interfaces show it, with the pictures in it.
    """

    def __init__(self, figures: Figures, spec: DatasetSpec) -> None:
        import jinja2

        self._figures, self._report, self._spec = figures, figures.report, spec
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("flows.dashboard", package_path=""),
            autoescape=jinja2.select_autoescape(["html.jinja"]),
            undefined=jinja2.StrictUndefined,
        )
        self._templates.filters["plain"] = plain
        tokens, text = count_text(figures.total.tokens), bytes_text(figures.total.text_bytes)
        self.headline = f"{self._state}: {tokens} tokens in {text}"
        self.markdown = self._templates.get_template("report.md.jinja").render(
            table=_table,
            state=self._state,
            summary=self._summary(),
            tiles=self._tiles(),
            failed=[
                (
                    part.source,
                    part.step,
                    part.reason.removeprefix(f"{part.source}: ")[:_MOST_REASON],
                )
                for part in self._report.failed[:_MOST_FAILED]
            ],
            more_failed=max(0, len(self._report.failed) - _MOST_FAILED),
            charts=self._charts(),
            hosts=self._hosts(),
            skipped=figures.skipped,
            facts=self._facts(),
        )

    def html(self) -> str:
        """A page without scripts and without anything to load."""
        parser = _Markdown("commonmark", {"html": False}).enable("table")
        return self._templates.get_template("page.html.jinja").render(
            name=f"Report of {visible(self._report.output)}", report=parser.render(self.markdown)
        )

    @property
    def _state(self) -> str:
        report = self._report
        if report.failed:
            return f"{len(report.failed):,} of {report.files:,} parts failed"
        return "published" if report.published else "not published"

    def _summary(self) -> str:
        report = self._report
        hosts = sorted({part.host for part in report.parts if part.host}) or [report.host]
        where, each = (hosts[0], "") if len(hosts) == 1 else (f"{len(hosts)} hosts", " each")
        return (
            f"{report.began:%Y-%m-%d %H:%M} UTC, {duration_text(report.seconds)} on {where}, "
            f"{counted(report.workers, 'worker')}{each}"
        )

    def _tiles(self) -> list[tuple[str, str]]:
        total, report = self._figures.total, self._report
        return [
            (f"{total.parts:,} of {report.files:,}", "parts"),
            (f"{total.documents - report.duplicate_documents:,}", "documents"),
            (count_text(total.tokens - report.duplicate_tokens), "tokens"),
            (bytes_text(total.text_bytes), "text"),
            (f"{total.bytes_per_token:.2f}", "bytes a token"),
            (f"{report.megabytes_per_second:,.1f} MB/s", "in this run"),
        ]

    def _charts(self) -> Iterable[tuple[str, str, str]]:
        """Title, picture and note."""
        lengths, total = self._figures.lengths, self._figures.total
        documents = total.documents - self._report.duplicate_documents
        all_of_them = lengths.documents >= documents
        some = "" if all_of_them else f", of {lengths.documents:,} of {documents:,} documents"
        per_bar = max((group.parts for group in self._figures.groups), default=1)
        notes = {
            "Document lengths": f"mean {lengths.mean:,.0f}, median {lengths.quantile(0.5):,}, 99 % "
            f"within {lengths.quantile(0.99):,}, longest {lengths.longest:,} tokens{some}",
            "Tokens by source": f"{total.parts:,} parts, up to {per_bar:,} a bar"
            if per_bar > 1
            else "",
            "Slowest parts": "seconds of work; waiting for a worker does not count",
        }
        for title, svg in draw_charts(self._figures).items():
            yield title, base64.b64encode(svg.encode()).decode(), notes.get(title, "")

    def _hosts(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for host in sorted({part.host for part in self._report.parts}):
            parts = [part for part in self._report.parts if part.host == host]
            text = bytes_text(sum(part.text_bytes for part in parts))
            tokens = sum(part.tokens for part in parts)
            rows.append((host, f"{len(parts):,}", f"{tokens:,}", text))
        return rows

    def _facts(self) -> list[tuple[str, str]]:
        report, spec = self._report, self._spec
        output = report.output
        holdout = f"{spec.holdout_fraction:.4%} of the documents, seed {spec.holdout_seed}"
        written = f"{spec.compression}, {bytes_text(report.shard_bytes)} written in this run"
        facts = [
            ("tokenizer", f"{spec.tokenizer.name}, {spec.tokenizer.vocab_size:,} ids"),
            ("samples", f"{spec.sequence_length:,} tokens of {spec.dtype}"),
            ("holdout", holdout if spec.holdout_fraction else "none"),
            ("shards", written),
            ("run", report.run),
            ("versions", ", ".join(f"{name} {v}" for name, v in report.versions.items())),
        ]
        if spec.shuffle is not None:
            merged = f"{counted(len(report.merged), 'part')} merged in this run"
            took = f", {duration_text(report.merge_seconds)}" if report.merged else ""
            shuffled = f"{spec.shuffle} shuffled, seed {spec.shuffle_seed}"
            facts.append(("order", f"{shuffled}; {merged}{took}"))
        if spec.deduplicate is not None:
            left_out = (
                f"{counted(report.duplicate_documents, 'document')} of "
                f"{counted(report.duplicate_tokens, 'token')} left out, {spec.deduplicate}; "
                f"{DUPLICATES_FOLDER}/ lists them"
            )
            not_yet = f"{spec.deduplicate}; not left out yet"
            facts.append(("copies", left_out if report.published else not_yet))
        if report.sources_not_checked:
            files = counted(report.sources_not_checked, "source file")
            facts.append(("not checked on the way", f"{files}: no hash of them is offered"))
        if report.published:
            facts.append(("manifest", f"{output}/{MANIFEST}"))
        paths = {"this page": ".html", "record of the run": ".json"}
        return facts + [
            (what, f"{output}/{report_path(report, end)}") for what, end in paths.items()
        ]


def _table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *([plain(str(cell)) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
