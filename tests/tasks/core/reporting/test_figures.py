"""The figures of a report, by hand and by sums that must agree."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from streaming_ext.format.filters import Filters
from streaming_ext.format.record import BadDocument
from streaming_ext.store import LocalStorage
from tasks.core.reporting.figures import Figures, group_by_source, make_figures, throughput
from tasks.core.reporting.lengths import Lengths, evenly, sample_lengths
from tasks.core.reporting.report import PartTimes, ReportedCounts, RunReport
from tests.tasks.core.build_dataset import build_dataset
from tests.tasks.core.doubles import make_spec
from tests.tasks.core.reporting.test_report import make_report, part_times

BEGAN = datetime(2031, 2, 3, tzinfo=UTC)


def part(number: int, source: str = "", **changes: Any) -> PartTimes:
    values: dict[str, Any] = {
        "source": source or f"/data/{number:05}.parquet",
        "host": "a",
        "tokenized_at": BEGAN.timestamp() + 10,
        "text_bytes": 400,
        "tokens": 110,
        "documents": 10,
        "shard_bytes": 50,
        "tokenize_seconds": 4.0,
    }
    return part_times(number, **(values | changes))


def report(*parts: PartTimes, **changes: Any) -> RunReport:
    values: dict[str, Any] = {
        "began": BEGAN,
        "seconds": 20.0,
        "files": len(parts),
        "files_done": len(parts),
        "failed": (),
        "published": True,
        "parts": parts,
    }
    return make_report(**(values | changes))


def figures(*parts: PartTimes, earlier: tuple[ReportedCounts, ...] = (), **changes: Any) -> Figures:
    return make_figures(report(*parts, **changes), earlier, make_spec(), Lengths())


def test_bytes_a_token_leave_the_ends_of_texts_out() -> None:
    assert report(part(0), text_bytes=400, tokens=110).bytes_per_token == 4.0
    (group,) = group_by_source([part(0)])
    assert group.bytes_per_token == 4.0
    (empty,) = group_by_source([part(0, tokens=0, documents=0)])
    assert empty.bytes_per_token == 0


@pytest.mark.parametrize(
    ("sources", "groups"),
    [
        ([], []),
        (["/d/b.parquet", "/d/a.parquet"], [("a.parquet", 1), ("b.parquet", 1)]),
        (["/d/x/1.parquet", "/d/2.parquet"], [("2.parquet", 1), ("x", 1)]),
        (["https://h/x/19/1", "https://h/x/19/2", "https://h/x/20/1"], [("19", 2), ("20", 1)]),
    ],
)
def test_groups_are_by_the_first_folder_that_differs(sources, groups) -> None:
    found = group_by_source([part(number, source) for number, source in enumerate(sources)])
    assert [(group.name, group.parts) for group in found] == groups


def test_thousands_of_groups_are_joined_with_their_neighbours() -> None:
    groups = group_by_source([part(number) for number in range(2400)])
    assert [(group.parts, group.tokens) for group in groups] == [(150, 150 * 110)] * 16
    assert groups[0].name == "00000.parquet … 00149.parquet"


class TestThroughput:
    def test_by_hand(self) -> None:
        found = throughput(report(part(0), seconds=20.0))
        assert found is not None
        assert list(found.edges) == list(range(21))
        # 400 bytes in the four seconds before second 10
        assert found.rates == pytest.approx([0] * 6 + [100] * 4 + [0] * 10)

    def test_no_byte_is_lost_if_the_clocks_of_hosts_differ(self) -> None:
        parts = [part(n, tokenized_at=BEGAN.timestamp() + 15 * n - 500) for n in range(80)]
        found = throughput(report(*parts, seconds=600.0))
        assert found is not None
        assert len(found.edges) == 61
        assert (found.rates * np.diff(found.edges)).sum() == pytest.approx(80 * 400)

    def test_nothing_done(self) -> None:
        assert throughput(report()) is None
        assert throughput(report(part(0, tokenized_at=0.0))) is None  # a part made by a merge


def test_earlier_parts_are_in_the_total() -> None:
    old = ReportedCounts(part=0, source="/data/old", text_bytes=50, tokens=20, documents=10)
    found = figures(part(1), part(2), earlier=(old,))
    assert (found.total.parts, found.total.tokens, found.total.text_bytes) == (3, 240, 850)
    assert found.total.rows == found.total.documents


class TestWhatWasLeftOut:
    def test_nothing(self) -> None:
        assert figures(part(1)).left_out == ()

    def test_each_with_its_reason(self) -> None:
        found = figures(
            part(1, null_documents=3, empty_documents=1),
            part(2, null_documents=4),
        )
        assert [what for what, _ in found.left_out] == ["7 rows", "1 row"]
        assert "null in the column text" in found.left_out[0][1]
        assert found.total.rows == found.total.documents + 8

    def test_bad_documents_are_named(self) -> None:
        bad = [
            BadDocument(file="a.jsonl", row=row, location=f"line {row + 1}", reason="bad")
            for row in range(3)
        ]
        found = figures(part(0, bad_documents=2000, bad_listed=tuple(bad)))
        ((what, why),) = found.left_out
        assert what == "2,000 rows"
        assert "a.jsonl: line 2: bad" in why
        assert "1,997 more" in why

    def test_what_filters_dropped(self) -> None:
        filters = Filters(where="stars > 3", min_tokens=10)
        made = report(
            part(0, dropped_documents={"where": 1200, "min_tokens": 0}),
            part(1, dropped_documents={"where": 34, "min_tokens": 1}),
        )
        spec = make_spec().model_copy(update={"filters": filters})
        assert make_figures(made, (), spec, Lengths()).left_out == (
            ("1,234 rows", "dropped by --where stars > 3"),
            ("1 row", "dropped by --min-tokens 10"),
        )


class TestLengths:
    def test_of_a_dataset(self, tmp_path, tokenizer) -> None:
        texts = [["xy", "one two three", None, ""], ["abc"]]
        root = build_dataset(tmp_path, texts)
        lengths = sample_lengths(LocalStorage(root), [part(0, documents=2), part(1, documents=1)])
        expected = [len(tokenizer.encode(text)) for text in ("xy", "one two three", "abc")]
        assert (lengths.documents, lengths.longest) == (3, max(expected))
        assert lengths.tokens == sum(expected)
        with pytest.raises(FileNotFoundError):  # a smaller sample would not be even
            sample_lengths(LocalStorage(root), [part(2)])

    def test_files_are_sampled_evenly(self) -> None:
        assert evenly([]) == []
        assert evenly([10] * 12) == list(range(12))
        assert evenly([1000] * 2400) == list(range(0, 2400, 50))
        assert evenly([600_000] * 2400) == [0, 400, 800, 1200, 1600, 2000]
        assert evenly([10**9] * 5) == [0]
