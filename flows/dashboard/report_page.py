"""The report of a run for people: one self-contained page, and the same as a Prefect artifact."""

import base64

from markdown_it import MarkdownIt

from flows.dashboard.charts import draw_charts
from flows.terminal.tables import spec_facts
from flows.terminal.visible import bytes_text, count_text, counted, duration_text, plain, visible
from streaming_ext.format.layout import DUPLICATES_FOLDER, MANIFEST
from streaming_ext.format.spec import DatasetSpec
from tasks.core.reporting.figures import Figures
from tasks.core.reporting.report import report_path


class _Markdown(MarkdownIt):
    """Shows the report's own pictures, and makes no links."""

    def validateLink(self, url: str) -> bool:  # noqa: N802  (the library's name)
        return url.startswith("data:image/svg+xml;base64,")


class ReportPage:
    """A report as Markdown, and as a page of its own.

    Attributes:
        headline: one line.
        markdown: the report as Prefect's interfaces show it, with its pictures.
    """

    def __init__(self, figures: Figures, spec: DatasetSpec) -> None:
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
            "plain": plain,
            "count": count_text,
            "bytes": bytes_text,
            "duration": duration_text,
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
            spec=spec,
            spec_facts=spec_facts(spec),
            charts={
                title: base64.b64encode(svg.encode()).decode()
                for title, svg in draw_charts(figures).items()
            },
            paths={
                "copies": DUPLICATES_FOLDER,
                "manifest": f"{report.output}/{MANIFEST}",
                "page": f"{report.output}/{report_path(report, '.html')}",
                "record": f"{report.output}/{report_path(report, '.json')}",
            },
        )

    def html(self) -> str:
        """A page without scripts that loads nothing."""
        parser = _Markdown("commonmark", {"html": False}).enable("table")
        return self._templates.get_template("page.html.jinja").render(
            name=self._name, report=parser.render(self.markdown)
        )
