"""Paths and names are printed in full everywhere, and tables keep their columns."""

from typing import Any

import pytest

from flows.terminal.printing import show_facts, show_table
from flows.terminal.run_progress import shown
from tests.command_line import wait_for
from tests.flows.terminal.test_run_progress import console, snapshot

PATH = "/data/" + "long" * 40 + "/x.html"
ROWS = [
    {"part": "00000", "documents": "438", "text": "6.5 MB", "source": PATH},
    {"part": "00001", "documents": "1,099", "text": "120 kB", "source": "/b"},
]


class TestPipe:
    """A line is as long as it needs to be if the output is no terminal."""

    def test_a_path_among_facts_is_not_cut(self) -> None:
        screen, out = console(width=80)
        show_facts([("report", PATH), ("time", "0:00:01 (3 MB/s)")], screen)
        assert out.getvalue() == f"report  {PATH}\ntime    0:00:01 (3 MB/s)\n"

    def test_a_path_in_a_table_is_not_cut(self) -> None:
        screen, out = console(width=80)
        show_table(ROWS, screen, left=("source",))
        assert out.getvalue() == (
            "part   documents    text  source\n"
            f"00000        438  6.5 MB  {PATH}\n"
            "00001      1,099  120 kB  /b\n"
        )


def test_a_terminal_wraps_and_cuts_nothing_off() -> None:
    screen, out = console(width=40, is_terminal=True)
    show_table(ROWS, screen, left=("source",))
    show_facts([("report", PATH)], screen)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert PATH.split("/")[2] in "".join(line[24:] for line in lines).replace(" ", "")
    assert PATH.split("/")[2] in "".join(line[8:] for line in lines).replace(" ", "")


class TestProgress:
    @pytest.mark.parametrize("width", [20, 60, 200])
    def test_the_progress_line_fits_a_terminal(self, width) -> None:
        now: dict[str, Any] = {
            "phase": "sharded; Prefect records the run",
            "parts_done": 1999,
            "parts_failed": 17,
            "parts_total": 2400,
            "text_bytes": 10**13,
            "tokens": 10**12,
            "seconds": 10.0**5,
        }
        screen, out = console(width=width, is_terminal=True)
        with shown(lambda: snapshot(**now), screen):
            wait_for(lambda: "━" in out.getvalue(), seconds=60)
        frames = out.getvalue().removeprefix("\x1b[?25l").split("\r")
        assert max(len(line) for line in frames[0].splitlines()) <= width
        assert frames[0].count("\n") <= 2  # the line and the bar
