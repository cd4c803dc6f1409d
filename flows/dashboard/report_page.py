"""What a run leaves for people: one self-contained page, and the same as an artifact of Prefect."""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flows.dashboard.drawing import MUTED
from flows.dashboard.drawn_beside import drawn
from flows.terminal.visible import bytes_text, count_text, duration_text, plain, visible
from streaming_ext.dataset.layout import DUPLICATES_FOLDER, MANIFEST
from streaming_ext.dataset.spec import DatasetSpec
from tasks.core.reporting.figures import Figures
from tasks.core.reporting.report import FailedFile, RunReport, report_path

_MOST_FAILED = 50  # that are shown; the run's record holds all
_MOST_REASON = 400  # characters


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A picture: its SVG, and what must be said beside it."""

    title: str
    svg: str
    note: str


class ReportPage:
    """A report that is drawn once and shown twice."""

    def __init__(self, figures: Figures, spec: DatasetSpec) -> None:
        self._figures = figures
        self._spec = spec
        notes = self._notes()
        self._charts = [
            Chart(title=title, svg=svg, note=notes.get(title, ""))
            for title, svg in drawn(figures).items()
        ]

    @property
    def _report(self) -> RunReport:
        return self._figures.report

    def html(self) -> str:
        """A page without scripts and without anything to load; a browser's reader needs no more."""
        import jinja2

        loader = jinja2.PackageLoader("flows.dashboard", package_path="")
        environment = jinja2.Environment(
            loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
        )
        page = environment.get_template("page.html.jinja")
        report = self._report
        # The page's own colours go with light and dark; a picture elsewhere has one for both.
        charts = [
            Chart(title=c.title, svg=c.svg.replace(MUTED, "var(--muted)"), note=c.note)
            for c in self._charts
        ]
        return page.render(
            title=f"Report of {visible(report.output)}",
            name=visible(report.output),
            published=report.published,
            state=self._state(),
            summary=self._summary(),
            tiles=self._tiles(),
            charts=charts,
            failed=[
                (visible(failed.source), failed.step, _reason(failed))
                for failed in report.failed[:_MOST_FAILED]
            ],
            more_failed=max(0, len(report.failed) - _MOST_FAILED),
            hosts=self._hosts(),
            skipped=[
                {"what": skipped.what, "why": visible(skipped.why)}
                for skipped in self._figures.skipped
            ],
            facts=self._facts(),
        )

    def headline(self) -> str:
        """What a card has room for."""
        total = self._figures.total
        return (
            f"{self._state()}: {count_text(total.tokens)} tokens in {bytes_text(total.text_bytes)}"
        )

    def markdown(self, where: str) -> str:
        """The report as Prefect's interfaces show Markdown, with the pictures in it.

        Args:
            where: the page lies.
        """
        return "\n\n".join(self._markdown_blocks(where))

    def _markdown_blocks(self, where: str) -> Iterator[str]:
        report = self._report
        yield f"**{self._state()}** {plain(self._summary())}"
        yield _table([label for _, label in self._tiles()], [[value for value, _ in self._tiles()]])
        if report.failed:
            yield "## Failed parts"
            rows = [
                [plain(failed.source), failed.step, plain(_reason(failed))]
                for failed in report.failed[:_MOST_FAILED]
            ]
            yield _table(["part", "step", "reason"], rows)
        for chart in self._charts:
            yield f"## {chart.title}"
            data = base64.b64encode(chart.svg.encode()).decode()
            yield f"![{chart.title}](data:image/svg+xml;base64,{data})"
            if chart.note:
                yield f"*{plain(chart.note)}*"
        if len(hosts := self._hosts()) > 1:
            yield "## Hosts"
            rows = [[plain(cell) for cell in host] for host in hosts]
            yield _table(["host", "parts", "tokens", "MB of text"], rows)
        yield "## Skipped"
        if self._figures.skipped:
            skipped = self._figures.skipped
            yield "\n".join(f"- {entry.what}: {plain(entry.why)}" for entry in skipped)
        else:
            yield "Nothing: every row of every source file is a document of the dataset."
        yield "## Dataset"
        facts = [[label, plain(value)] for label, value, link in self._facts() if link is None]
        places = [["manifest", f"{report.output}/{MANIFEST}"]] if report.published else []
        places += [["this page", where], ["record of the run", self._place(".json")]]
        yield _table(["", ""], facts + [[label, _linked(place)] for label, place in places])

    def _place(self, suffix: str) -> str:
        return f"{self._report.output}/{report_path(self._report, suffix)}"

    def _state(self) -> str:
        report = self._report
        if report.failed:
            return f"{len(report.failed):,} of {report.files:,} parts failed"
        return "published" if report.published else "not published"

    def _summary(self) -> str:
        report = self._report
        hosts = sorted({part.host for part in report.parts if part.host}) or [report.host]
        where = visible(hosts[0]) if len(hosts) == 1 else f"{len(hosts)} hosts"
        return (
            f"{report.began:%Y-%m-%d %H:%M} UTC, {duration_text(report.seconds)} on {where}, "
            f"{report.workers} worker{'s' if report.workers > 1 else ''}"
            + (" each" if len(hosts) > 1 else "")
        )

    def _tiles(self) -> list[tuple[str, str]]:
        total, report = self._figures.total, self._report
        return [
            (f"{total.parts:,} of {report.files:,}", "parts"),
            (_count(total.documents - report.duplicate_documents), "documents"),
            (_count(total.tokens - report.duplicate_tokens), "tokens"),
            (bytes_text(total.text_bytes), "text"),
            (f"{total.bytes_per_token:.2f}", "bytes a token"),
            (f"{report.megabytes_per_second:,.1f} MB/s", "in this run"),
        ]

    def _notes(self) -> dict[str, str]:
        lengths, total = self._figures.lengths, self._figures.total
        documents = total.documents - self._report.duplicate_documents
        all_of_them = lengths.documents >= documents
        some = "" if all_of_them else f", of {lengths.documents:,} of {documents:,} documents"
        groups = self._figures.groups
        per_bar = max((group.parts for group in groups), default=1)
        return {
            "Document lengths": f"mean {lengths.mean:,.0f}, median {lengths.quantile(0.5):,}, 99 % "
            f"within {lengths.quantile(0.99):,}, longest {lengths.longest:,} tokens{some}",
            "Tokens by source": f"{total.parts:,} parts, up to {per_bar:,} a bar"
            if per_bar > 1
            else "",
            "Slowest parts": "seconds of work; waiting for a worker does not count",
        }

    def _hosts(self) -> list[tuple[str, str, str, str]]:
        rows = []
        for host in sorted({part.host for part in self._report.parts}):
            parts = [part for part in self._report.parts if part.host == host]
            tokens = sum(part.tokens for part in parts)
            text = sum(part.text_bytes for part in parts) / 1e6
            rows.append((visible(host), f"{len(parts):,}", f"{tokens:,}", f"{text:,.1f}"))
        return rows

    def _facts(self) -> list[tuple[str, str, str | None]]:
        """(label, value, link relative to the page, where the value is a file of the dataset)."""
        report, spec = self._report, self._spec
        holdout = f"{spec.holdout_fraction:.4%} of the documents, seed {spec.holdout_seed}"
        tokenizer = f"{spec.tokenizer.name}, {spec.tokenizer.vocab_size:,} ids"
        facts: list[tuple[str, str, str | None]] = [
            ("output", visible(report.output), None),
            ("tokenizer", visible(tokenizer), None),
            ("samples", f"{spec.sequence_length:,} tokens of {spec.dtype}", None),
            ("holdout", holdout if spec.holdout_fraction else "none", None),
            (
                "shards",
                f"{spec.compression}, {bytes_text(report.shard_bytes)} written in this run",
                None,
            ),
            ("run", report.run, None),
            ("versions", ", ".join(f"{name} {v}" for name, v in report.versions.items()), None),
        ]
        if spec.shuffle is not None:
            stage = f"{len(report.gathered):,} parts merged in this run"
            told = f"{spec.shuffle} shuffled, seed {spec.shuffle_seed}; {stage}"
            if report.gathered:
                told += f", {duration_text(report.gather_seconds)}"
            facts.append(("order", told, None))
        if spec.deduplicate is not None:
            told = (
                f"{report.duplicate_documents:,} documents of {report.duplicate_tokens:,} tokens "
                f"left out, {spec.deduplicate}; {DUPLICATES_FOLDER}/ lists them"
                if report.published
                else f"{spec.deduplicate}; not left out yet"
            )
            facts.append(("copies", told, None))
        if report.sources_not_checked:
            told = f"{report.sources_not_checked:,} source files"
            facts.append(("not checked on the way", f"{told}: no hash of them is offered", None))
        if report.published:
            facts.append(("manifest", MANIFEST, f"../{MANIFEST}"))
        record = report_path(report, ".json").rsplit("/", 1)[-1]
        facts.append(("record of the run", record, record))
        return facts


def _reason(failed: FailedFile) -> str:
    reason = visible(failed.reason.removeprefix(f"{failed.source}: "))
    return reason if len(reason) <= _MOST_REASON else f"{reason[:_MOST_REASON]}…"


def _count(number: int) -> str:
    return f"{number:,}" if number < 10**7 else count_text(number)


def _linked(place: str) -> str:
    """A link where a browser may follow it, from a page of a server too."""
    shown = plain(place)
    return f"[{shown}]({place})" if place.startswith("https://") and shown == place else shown


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
