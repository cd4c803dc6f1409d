"""The tables of a running run: bounded, each file once, and nothing that a page would act on."""

import time

import pytest

from flows.dashboard.updates import (
    describe_hosts,
    describe_parts,
    hosts_table,
    name_with_reason,
    parts_table,
)
from flows.terminal.printing import plain
from tasks.core.reporting.progress import WorkingFile
from tasks.core.reporting.report import FailedFile, PartTimes
from tests.tasks.core.reporting.test_report import part_times


def done(part: int, *, host: str = "a", seconds: float = 2.0, source: str = "") -> PartTimes:
    return part_times(
        part,
        source=source or f"/data/x/{part}.parquet",
        host=host,
        tokenized_at=time.time(),
        text_bytes=10_000_000,
        tokens=2_000_000,
        tokenize_seconds=seconds,
        write_seconds=0.0,
    )


def failed(part: int) -> FailedFile:
    source = f"/data/x/{part}.parquet"
    return FailedFile(part=part, source=source, step="write", reason=f"{source}: full", host="a")


def working(part: int, *, step: str = "tokenize", text_bytes: int = 0) -> WorkingFile:
    return WorkingFile(
        part=part,
        source=f"/data/x/{part}.parquet",
        step=step,
        host="a",
        since=time.monotonic() - 4,
        text_bytes=text_bytes,
        tokens=text_bytes // 5,
    )


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("/data/dump/x/a.parquet: damaged", "…/x/a.parquet: damaged"),
        (
            "Cannot look at org/a on the Hub, https://hub.example: refused. (tried 7 times)",
            "Cannot look at org/a on the Hub, https://hub.example: refused. (tried 7 times)",
        ),
        (
            "Cannot read https://hub.example/datasets/org/a/resolve/main/a/b.parquet: 503",
            "Cannot read https://hub.example/…/a/b.parquet: 503",
        ),
        ("s3://bucket/a/b/c.parquet: cut", "s3://bucket/…/b/c.parquet: cut"),
        ("one line\nand more", "one line and more"),
        ("x" * 400, "x" * 296),
    ],
)
def test_the_name_of_a_failed_run_keeps_the_host_and_leaves_out_folders(reason, name) -> None:
    message = f"Flow run encountered an exception: {reason}"
    assert name_with_reason("ab", message) == f"ab: {name}"
    assert name_with_reason("ab", reason) == f"ab: {name}"


class TestFiles:
    def test_by_hand(self) -> None:
        rows = parts_table(
            [working(3, text_bytes=8_000_000), working(4), working(5, step="write")],
            [done(1), failed(2)],
        )
        files = [(row["part"], row["state"], row["tokens"], row["MB/s"]) for row in rows]
        assert files == [
            ("x/3.parquet", "tokenize", "1.6M", "2.0"),
            ("x/4.parquet", "waiting", "", ""),
            ("x/5.parquet", "write", "", ""),
            ("x/2.parquet", "failed: write", "", ""),
            ("x/1.parquet", "done", "2M", "5.0"),
        ]
        assert rows[3]["reason"] == "full"
        assert {row["host"] for row in rows} == {"a"}

    def test_thousands_of_files_give_some_hundred_rows_each_once(self) -> None:
        results = [done(n, seconds=2.0) for n in range(2400)]
        many = [working(n) for n in range(3000, 3900)]
        results[-2] = done(2398, source=f"/data/{'x' * 500}/2398.parquet")
        rows = parts_table(many, [*results, *(failed(n) for n in range(2400, 2900))])
        names = {row["part"] for row in rows}
        assert 150 < len(rows) == len(names) <= 180
        assert {"x/2399.parquet", "x/2899.parquet"} <= names  # the latest
        (long,) = (name for name in names if name.endswith("x/2398.parquet"))
        assert len(long) <= 100  # its end is kept
        text = describe_parts(many, results)
        assert text.startswith("900 in hand, 0 failed, 2,400 done; the latest")


def test_hosts() -> None:
    results = [done(1, host="a"), done(2, host="b", seconds=4.0), done(3, host="b"), failed(4)]
    a, b = hosts_table([working(5, text_bytes=2_000_000)], results)
    assert (a["host"], a["parts done"], a["failed"], a["in hand"]) == ("a", "1", "1", "1")
    assert (b["host"], b["parts done"], b["failed"], b["in hand"]) == ("b", "2", "0", "0")
    assert a["tokens"] == "2.4M"
    assert float(a["MB/s"]) == pytest.approx(3.0, abs=0.1)  # 12 MB since its first text, 4 s ago
    assert float(b["MB/s"]) == pytest.approx(5.0, abs=0.1)
    assert describe_hosts([a, b]) == f"2 hosts, {float(a['MB/s']) + float(b['MB/s']):.1f} MB/s"
    assert hosts_table([], []) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hf://datasets/o/n@c/a.parquet", None),
        ("https://example.org/a.parquet", None),
        ("東京/données.parquet", None),
        ("<b>x</b>", r"\u003cb\u003ex\u003c/b\u003e"),
        ("[x](y) ![x](y)", r"\u005bx\u005d(y) !\u005bx\u005d(y)"),
        ("see http://evil and www.evil", r"see http\u003a//evil and www\u002eevil"),
        ("a|b*c*`d`~e~&lt;", r"a\u007cb\u002ac\u002a\u0060d\u0060\u007ee\u007e\u0026lt;"),
        ("a\nb\x1b[2J\u202e", r"a\nb\x1b\u005b2J\u202e"),
    ],
)
def test_plain(text, shown) -> None:
    assert plain(text) == (text if shown is None else shown)
