"""What `make` sees to for all that it starts."""

import os
import subprocess
from pathlib import Path

import pytest


def test_what_is_imported_is_compiled_once() -> None:
    shown = subprocess.run(
        ["make", "--silent", "--eval", "shown: ; @env", "shown"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "SOMETHING": "else"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert "SOMETHING=else" in shown
    assert not [line for line in shown if line.startswith("PYTHONDONTWRITEBYTECODE")]


@pytest.mark.parametrize(
    ("codes", "runs", "passes"),
    [((0,), 1, True), ((1, 0), 2, True), ((1, 1), 2, False), ((1, 5), 2, False), ((2,), 1, False)],
)
def test_what_failed_runs_once_more(
    tmp_path: Path, codes: tuple[int, ...], runs: int, passes: bool
) -> None:
    """Codes are pytest's: 1 where tests failed, 2 where it was stopped, 5 where there is none."""
    stand_in = tmp_path / "pytest"
    stand_in.write_text(
        f'#!/bin/sh\ncd {tmp_path}\necho "$@" >> runs\nset -- {" ".join(map(str, codes))}\n'
        'shift "$(($(wc -l < runs) - 1))"\nexit "$1"\n'
    )
    stand_in.chmod(0o755)
    ready = tmp_path / "ready"  # newer than all of a checkout: there is nothing to install
    ready.touch()
    ended = subprocess.run(
        ["make", "--silent", "tests", f"BIN={tmp_path}", f"READY={ready}"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    asked = (tmp_path / "runs").read_text().splitlines()
    assert (ended.returncode == 0) is passes, ended.stderr
    assert len(asked) == runs
    assert ["--last-failed" in each for each in asked] == [False, True][:runs]
    assert ("UNSTEADY" in ended.stdout) is (runs == 2)
