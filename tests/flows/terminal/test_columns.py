"""Paths and names are whole wherever they are printed, and tables keep their columns."""

import io
from typing import Any

import pytest
from rich.console import Console

from flows.terminal.columns import show_facts, show_table
from flows.terminal.run_progress import describe, shown
from tasks.core.reporting.progress import RunProgress
from tests.command_line import wait_for
from tests.flows.terminal.test_run_progress import snapshot

PATH = "/data/" + "long" * 40 + "/x.html"
COLUMNS = ("part", "documents", "text", "source")
ROWS = [("00000", "438", "6.5 MiB", PATH), ("00001", "1,099", "120 KiB", "/b")]


def console(width: int, *, is_terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=is_terminal, color_system=None), out


class TestPipe:
    """Where the output is no terminal, a line is as long as it needs to be."""

    def test_a_path_among_facts_is_not_cut(self) -> None:
        screen, out = console(80, is_terminal=False)
        show_facts([("report", PATH), ("time", "0:00:01 (3 MB/s)")], screen)
        assert out.getvalue() == f"report  {PATH}\ntime    0:00:01 (3 MB/s)\n"

    def test_a_path_in_a_table_is_not_cut(self) -> None:
        screen, out = console(80, is_terminal=False)
        show_table(COLUMNS, ROWS, screen, left=("source",))
        assert out.getvalue() == (
            "  part   documents     text  source\n"
            f"  00000        438  6.5 MiB  {PATH}\n"
            "  00001      1,099  120 KiB  /b\n"
        )


class TestTerminal:
    """No line is wider than the terminal, but for a word that is to be copied."""

    def test_a_remark_goes_on_below_itself(self) -> None:
        screen, out = console(35, is_terminal=True)
        show_facts([("text", "1 MB", "of what stands in the column"), ("report", "", "x")], screen)
        assert out.getvalue().splitlines() == [
            "text    1 MB  of what stands in the",
            "              column",
            "report        x",
        ]

    def test_a_path_is_left_whole(self) -> None:
        screen, out = console(60, is_terminal=True)
        show_facts([("report", PATH)], screen)
        assert out.getvalue() == f"report  {PATH}\n"

    def test_a_table_that_is_too_wide_is_shown_row_by_row(self) -> None:
        screen, out = console(36, is_terminal=True)
        show_table(COLUMNS, [ROWS[1], ("…", "", "", "3 more")], screen, left=("source",))
        assert out.getvalue() == (
            "  part   documents     text  source\n"
            "  00001      1,099  120 KiB  /b\n  …                          3 more\n"
        )
        screen, out = console(30, is_terminal=True)
        show_table(COLUMNS, [ROWS[1], ("…", "", "", "3 more")], screen, left=("source",))
        assert out.getvalue() == (
            "  part 00001\n    documents  1,099\n    text       120 KiB\n    source     /b\n"
            "  part …\n    source  3 more\n"
        )


class TestProgress:
    @pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
    def test_the_progress_line_fits_a_terminal(self, width: int) -> None:
        now: dict[str, Any] = {
            "phase": "sharded; Prefect records the run", "parts_done": 1999, "parts_failed": 17,
            "parts_total": 2400, "text_bytes": 10**13, "tokens": 10**12, "seconds": 10.0**5,
        }  # fmt: skip
        screen, out = console(width, is_terminal=True)
        progress = RunProgress()
        progress.snapshot = lambda: snapshot(**now)  # type: ignore[method-assign]
        with shown(progress, screen):
            wait_for(lambda: "━" in out.getvalue(), seconds=60)
        frames = out.getvalue().removeprefix("\x1b[?25l").split("\r")
        assert max(len(line) for line in frames[0].splitlines()) <= width
        assert frames[0].count("\n") <= 2  # the line and the bar

    def test_the_time_left_is_kept_longest(self) -> None:
        line = describe(snapshot(), width=40)
        assert line == "sharding: 1/4 parts, 0:00:06 left"
        assert describe(snapshot(), width=10) == "sharding: 1/4 parts"
        assert describe(snapshot(), width=50) == "sharding: 1/4 parts, 7.5M tokens, 0:00:06 left"
