"""The text that people read: the line while a run goes on, and the summary at the end."""

import io
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from flows.stops import STOPS
from flows.terminal import run_progress as terminal
from flows.terminal.printing import parts_text
from flows.terminal.run_progress import describe, show_report, shown
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile
from tests.command_line import wait_for
from tests.tasks.core.reporting.test_progress import snapshot as progress_snapshot
from tests.tasks.core.reporting.test_report import make_report

snapshot = partial(
    progress_snapshot,
    parts_done=1,
    text_bytes=30_000_000,
    tokens=7_500_000,
    source_bytes=10.0,
    source_bytes_total=40,
    seconds=2.0,
)


def console(*, width: int = 200, is_terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=is_terminal, width=width, color_system=None), out


RATE = "7.5M tokens, 15.0 MB/s"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, f"sharding: 1/4 parts, 0:00:06 left, {RATE}"),
        ({"parts_failed": 2}, f"sharding: 1/4 parts, 2 failed, 0:00:06 left, {RATE}"),
        ({"parts_done": 4}, f"sharding: 4/4 parts, {RATE}"),
        ({"phase": "stopped", "stopped": True}, f"stopped: 1/4 parts, {RATE}"),
        ({"parts_total": 0, "phase": "starting"}, "starting"),
        (
            {"parts_done": 0, "source_bytes": 0.0, "text_bytes": 0, "tokens": 0},
            "sharding: 0/4 parts, time left unknown, 0 tokens, 0.0 MB/s",
        ),
    ],
)
def test_the_line_says_what_is_done_and_left(changes, line) -> None:
    assert describe(snapshot(**changes)) == line


@pytest.mark.parametrize(
    ("seconds", "left"),
    [(0.0, "0:00:00"), (20.0, "0:01:00"), (1200.4, "1:00:01"), (40_000.0, "1 day, 9:20:00")],
)
def test_the_time_left(seconds, left) -> None:
    assert f" parts, {left} left, " in describe(snapshot(seconds=seconds))


class TestShown:
    def test_lines_now_and_then_where_nobody_watches(self, monkeypatch) -> None:
        monkeypatch.setattr(terminal, "_LINE_SECONDS", 0.05)
        progress = RunProgress()
        progress.enter("looking at the sources")
        screen, out = console()
        with shown(progress.snapshot, screen):
            wait_for(lambda: out.getvalue().count("\n") >= 2, seconds=60)
        said = out.getvalue()
        assert set(said.splitlines()) == {"looking at the sources"}
        time.sleep(0.15)
        assert out.getvalue() == said  # no line after the end
        assert "\x1b" not in said

    def test_its_threads_leave_signals_to_the_main_one(self) -> None:
        """Otherwise they would receive a stop that the main thread holds back for a while."""
        others = set(threading.enumerate())
        screen, _ = console(is_terminal=True)
        with shown(RunProgress().snapshot, screen):
            for thread in set(threading.enumerate()) - others:
                status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
                blocked = int(status.split("SigBlk:")[1].split()[0], 16)
                assert all(blocked >> number - 1 & 1 for number in STOPS)

    @pytest.mark.parametrize("is_terminal", [True, False])
    def test_ends_with_an_error_too(self, is_terminal) -> None:
        screen, _ = console(is_terminal=is_terminal)
        before = threading.active_count()
        with pytest.raises(RuntimeError), shown(RunProgress().snapshot, screen):
            raise RuntimeError
        wait_for(lambda: threading.active_count() == before, seconds=60)

    def test_a_bar_that_goes_away(self) -> None:
        progress = RunProgress()
        screen, out = console(is_terminal=True)
        with shown(progress.snapshot, screen):
            assert "starting" in out.getvalue()  # from the start
            progress.enter("sharding")
            progress.begin(parts=4, source_bytes=400)
            progress.update(0, source_bytes=100.0, text_bytes=1000, tokens=1)
            wait_for(lambda: "sharding: 0/4 parts" in out.getvalue(), seconds=60)
        assert "━" in out.getvalue()
        assert "\x1b[2K" in out.getvalue()  # erased


class TestReport:
    def test_by_hand(self) -> None:
        screen, out = console()
        show_report(make_report(files=5, files_skipped=3, seconds=90.0), screen)
        rows = [line.split(maxsplit=1) for line in out.getvalue().splitlines()]
        assert [[word.strip() for word in row] for row in rows[:4]] == [
            ["parts", "4 of 5, 1 of them new"],
            ["engine", "auto"],
            ["text", "3.0 MB"],
            ["tokens", "700"],
        ]
        assert "bytes per token  4285.714" in out.getvalue()
        assert "0:01:30 (0.0 MB/s)" in out.getvalue()
        assert "FAILED /b: tokenize: damaged\n" in out.getvalue()

    @pytest.mark.parametrize(
        ("seconds", "took", "rate"),
        [
            (0.004, "0.004 s", 7825.0),
            (1.374, "1.37 s", 22.8),
            (59.0, "59 s", 0.5),
            (131.0, "0:02:11", 0.2),
        ],
    )
    def test_the_rate_is_the_quotient_of_what_stands_beside_it(self, seconds, took, rate) -> None:
        """The summary, the page and the list of runs agree, whenever the parts were worked on."""
        times = make_report().parts[0].model_copy(update={"tokenized_at": 1.0})
        report = make_report(seconds=seconds, text_bytes=31_300_000, parts=(times,))
        screen, out = console()
        show_report(report, screen)
        assert "text             31.3 MB\n" in out.getvalue()
        assert f"time             {took} ({rate:,.1f} MB/s)\n" in out.getvalue()
        assert round(report.megabytes_per_second, 1) == rate

    @pytest.mark.parametrize(
        ("counts", "words"),
        [
            ((60, 0, 60), "60"),
            ((60, 11, 49), "60, 49 of them new"),
            ((60, 60, 0), "60, 0 of them new"),
            ((60, 0, 57), "57 of 60"),
            ((2400, 1100, 1000), "2,100 of 2,400, 1,000 of them new"),
        ],
    )
    def test_parts(self, counts, words) -> None:
        files, skipped, done = counts
        report = make_report(files=files, files_skipped=skipped, files_done=done)
        assert parts_text(report) == words

    def test_the_second_phase_alone(self) -> None:
        """The run was killed in the second phase, and resumes there."""
        done = make_report()
        resumed = done.model_copy(
            update={
                "parts": (),
                "files_done": 0,
                "tokens": 0,
                "text_bytes": 0,
                "merged": done.parts,
                "merge_seconds": 61.0,
            }
        )
        for report, is_printed in ((resumed, True), (done, False)):
            screen, out = console()
            show_report(report, screen)
            printed = "second phase  1 part merged, 0:01:01"
            assert (printed in out.getvalue()) == is_printed

    def test_nothing_done(self) -> None:
        screen, out = console()
        show_report(make_report(tokens=0, text_bytes=0, seconds=0.0, failed=()), screen)
        assert "bytes per token" not in out.getvalue()
        assert "FAILED" not in out.getvalue()

    @pytest.mark.parametrize("is_terminal", [True, False])
    def test_a_failure_is_one_line_as_it_is(self, is_terminal) -> None:
        reason = f"column 'text' [bold]is[/bold] of type list<item: string> {'x' * 300}"
        failed = FailedFile(part=1, source="/data/[b]/x.parquet", step="tokenize", reason=reason)
        screen, out = console(is_terminal=is_terminal)
        show_report(make_report(failed=(failed,)), screen)
        line = f"FAILED /data/[b]/x.parquet: tokenize: {reason}"
        assert line in out.getvalue().splitlines()

    def test_no_control_sequence_reaches_the_terminal(self) -> None:
        failed = FailedFile(part=1, source="/b", step="tokenize", reason="bad \x1b[2J\x07\x9b name")
        screen, out = console()
        show_report(make_report(failed=(failed,)), screen, page="/out/runs/a\x1b.html")
        assert "/out/runs/a\\x1b.html" in out.getvalue()
        assert not set(out.getvalue()) & set("\x1b\x07\x9b")
