"""The report for people is well-formed and safe against every name, whatever it shows."""

import base64
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from flows.dashboard.report_page import ReportPage, draw_charts
from flows.terminal.pictures import MUTED
from streaming_ext.base.units import size_text
from streaming_ext.format.manifest import Manifest, SplitSummary
from streaming_ext.format.spec import ExcludedTexts
from tasks.core.check.inspect import SourceLoss
from tasks.core.reporting.figures import make_figures
from tasks.core.reporting.lengths import Lengths
from tasks.core.reporting.report import FailedFile, PartTimes
from tests.tasks.core.doubles import make_spec
from tests.tasks.core.reporting.test_figures import BEGAN, part, report

HOSTILE = (
    "</svg><script>alert(1)</script>\n# x\x1b[2J [a](http://evil) |$\\frac$ `&amp; \udc80 東京"
)


def page(*parts: PartTimes, lengths: bool = True, **changes: Any) -> ReportPage:
    counted = Lengths()
    if lengths:
        counted.add(np.random.default_rng(0).geometric(0.002, 5000))
    made = make_figures(report(*parts, **changes), (), make_spec(), counted)
    return ReportPage(made, make_spec())


def svgs(markdown: str) -> list[str]:
    """Return the pictures in a Markdown text."""
    found = re.findall(r"\(data:image/svg\+xml;base64,([^)]+)\)", markdown)
    return [base64.b64decode(data).decode() for data in found]


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def many(count: int, **changes: Any) -> list[PartTimes]:
    return [
        part(
            n,
            f"/data/{n % 3}/{n:05}.parquet",
            tokenized_at=BEGAN.timestamp() + n % 20,
            **{"host": f"host-{n % 2}", **changes},
        )
        for n in range(count)
    ]


class TestCharts:
    def test_letters_can_be_read_on_a_narrow_page(self) -> None:
        """The page is 400 pixels wide, of which 32 are its margins."""
        for chart in draw_charts(
            make_figures(report(*many(12)), (), make_spec(), Lengths())
        ).values():
            width = float(re.search(r'viewBox="0 0 (\S+) ', chart)[1])  # type: ignore[index]
            sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", chart)]
            assert min(sizes) * 368 / width >= 11

    @pytest.mark.parametrize("count", [1, 12, 2400])
    def test_well_formed_and_neutral(self, count) -> None:
        pictures = svgs(page(*many(count)).markdown)
        assert len(pictures) == 3
        for svg in pictures:
            root = ElementTree.fromstring(svg)  # noqa: S314  (our own)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert "width" not in root.attrib  # it takes all the room
            assert MUTED in svg
            assert "#ffffff" not in svg
            assert "#000000" not in svg
            assert len(svg) < 60_000

    def test_names_are_written_out(self) -> None:
        parts = [part(n, f"/data/{n}-$x$_{n}.parquet", host="_a$b$") for n in range(3)]
        tokens, _ = svgs(page(*parts, lengths=False).markdown)
        assert ">1-$x$_1.parquet<" in tokens


class TestHostileNames:
    @pytest.fixture(scope="class")
    @classmethod
    def hostile(cls) -> ReportPage:
        failed = FailedFile(part=9, source=f"/data/{HOSTILE}", step="write", reason=HOSTILE)
        parts = [part(n, f"/data/{n}{HOSTILE}", host=f"{n}{HOSTILE}") for n in range(3)]
        return page(*parts, failed=(failed,), output=f"/out/{HOSTILE}", host=HOSTILE)

    def test_in_the_page(self, hostile) -> None:
        html = hostile.html()
        html.encode()  # no lone surrogate
        found = Tags(html)
        assert not found.tags & {"script", "iframe", "object", "link", "a"}
        assert not {name for name in found.attributes if name.startswith("on")}
        assert len(re.findall('<img src="data:image/svg', html)) == html.count("<img") == 3
        assert not set(html) & {"\x1b", "\x07", "\u202e"}
        assert "</svg><script>alert(1)" in found.text
        assert "東京" in found.text

    def test_in_the_artifact(self, hostile) -> None:
        text = re.sub(r"!\[[\w ]+\]\(data:[^)]+\)", "", hostile.markdown)
        for acting in ("<", "](", "http://", "\x1b"):
            assert acting not in text
        assert [line for line in text.splitlines() if line.startswith("# x")] == []
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert (
            len({line.count("|") for line in rows if "&#60;script" in line and "write" in line})
            == 1
        )

    def test_in_the_pictures(self, hostile) -> None:
        for svg in svgs(hostile.markdown):
            tags = {each.tag.rpartition("}")[2] for each in ElementTree.fromstring(svg).iter()}  # noqa: S314
            assert "text" in tags
            assert "script" not in tags


class TestPage:
    def test_asks_for_nothing_and_runs_nothing(self) -> None:
        html = page(*many(12)).html()
        assert "prefers-color-scheme: dark" in html
        assert "default-src 'none'" in html
        assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", html)
        assert "<script" not in html

    def test_what_came_in_and_what_came_out(self) -> None:
        """Sources appear as named, splits with samples, sizes with units, and a special token."""
        names = ["/a/<b>*.parquet", *(f"/a/{n}" for n in range(9))]
        count = {"documents": 3, "tokens": 40, "padding": 0, "samples": 1234, "shards": 1}
        index = {"path": "train/index.json", "size": 1, "xxh128": "0" * 32}
        splits = {"train": SplitSummary.model_validate({"index": index, **count})}
        spec = make_spec()
        manifest = Manifest.model_construct(splits=splits, spec=spec)
        made = make_figures(report(*many(12)), (), spec, Lengths())
        page = ReportPage(made, spec, sources=names, manifest=manifest)
        text = Tags(page.html()).text
        for row in (
            "sources /a/<b>*.parquet /a/0 /a/1 /a/2 /a/3 and 5 more",
            "split documents tokens samples shards train 3 40 1,234 1",
            f"end of text {spec.tokenizer.eot_token} is id",
            f"shard size {size_text(spec.shard_size)}",
            "parts 12 came in",
            "left out nothing: every row is a document came out",
        ):
            assert row in " ".join(text.split()), row
        assert "<|endoftext|>" in text
        assert size_text(spec.shard_size)[-1] == "B"

    @pytest.mark.parametrize(("seconds", "unit"), [(20.0, "seconds"), (600.0, "minutes")])
    def test_the_axis_of_time(self, seconds, unit) -> None:
        made = make_figures(report(*many(3), seconds=seconds), (), make_spec(), Lengths())
        assert f">{unit}<" in draw_charts(made)["Throughput over time"]

    def test_hosts_are_reported_where_there_are_several(self) -> None:
        two = Tags(page(*many(12)).html()).text
        assert "on 2 hosts, 2 workers each" in two
        assert "host-0" in two
        one = Tags(page(*many(12, host="only")).html()).text
        assert "on only, 2 workers" in one
        assert "Hosts" not in one

    def test_thousands_of_failures_are_cut_short(self) -> None:
        failed = tuple(
            FailedFile(part=n, source=f"/d/{n}", step="write", reason="x" * 3000)
            for n in range(2400)
        )
        html = page(failed=failed, lengths=False, published=False).html()
        assert "2,400 of 0 parts failed" in html
        assert "and 2,350 more" in html
        assert len(html) < 60_000

    def test_a_sample_of_lengths_is_called_one(self) -> None:
        """A shuffled run counts all documents, whatever parts they go to: that is no sample."""
        counted = Lengths()
        counted.add(np.full(160, 7))
        made = make_figures(report(*many(16), merged=tuple(many(3))), (), make_spec(), counted)
        assert "longest 7 tokens</em>" in ReportPage(made, make_spec()).html()
        made = make_figures(report(*many(100)), (), make_spec(), counted)
        assert "of 160 of 1,000 documents" in ReportPage(made, make_spec()).html()
        assert draw_charts(make_figures(report(), (), make_spec(), Lengths())) == {}

    def test_lost_near_copies_and_found_evaluation_texts_are_listed(self) -> None:
        texts = ExcludedTexts(
            files=("/e.jsonl",), words=13, texts=9, without_ngram=2, hash="0" * 32
        )
        spec = make_spec().model_copy(update={"exclude": texts})
        made = make_figures(report(*many(2)), (), make_spec(), Lengths())
        made = made._replace(evaluation_texts=((f"/e.jsonl, row 3: {HOSTILE!r}", 7),))
        loss = SourceLoss(source=f"a/{HOSTILE}", documents=80, left_out=60)
        html = Tags(ReportPage(made, spec, losses=(loss,)).html())
        assert "1 text of 9 found; 2 have fewer than 13 words and are not looked for." in html.text
        assert "/e.jsonl, row 3" in html.text
        assert "Near copies by source" in html.text
        assert not {"script", "a"} & html.tags
