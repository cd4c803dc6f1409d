"""The Makefile's environment and targets."""

import os
from pathlib import Path

import pytest

from tests.command_line import run_program, succeeded

ROOT = Path(__file__).parents[1]


def test_modules_are_compiled_once() -> None:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "SOMETHING": "else"}
    words = ("make", "--silent", "--eval", "shown: ; @env", "shown")
    shown = succeeded(run_program(*words, env=env, folder=ROOT)).stdout.splitlines()
    assert "SOMETHING=else" in shown
    assert not [line for line in shown if line.startswith("PYTHONDONTWRITEBYTECODE")]


@pytest.mark.parametrize(
    ("codes", "runs", "passes"),
    [((0,), 1, True), ((1, 0), 2, True), ((1, 5), 2, False), ((2,), 1, False)],
)
def test_failed_tests_run_once_more(tmp_path, codes, runs, passes) -> None:
    """pytest exits with 1 if tests failed, 2 if it was stopped, 5 if it found no test."""
    stand_in = tmp_path / "pytest"
    stand_in.write_text(
        f'#!/bin/sh\ncd {tmp_path}\necho "$@" >> runs\nset -- {" ".join(map(str, codes))}\n'
        'shift "$(($(wc -l < runs) - 1))"\nexit "$1"\n'
    )
    stand_in.chmod(0o755)
    ready = tmp_path / "ready"  # newer than the checkout: nothing to install
    ready.touch()
    ended = run_program(
        "make", "--silent", "tests", f"BIN={tmp_path}", f"READY={ready}", folder=ROOT
    )
    calls = (tmp_path / "runs").read_text().splitlines()
    assert (ended.returncode == 0) is passes, ended.stderr
    assert len(calls) == runs
    assert ["--last-failed" in call for call in calls] == [False, True][:runs]
    assert ("UNSTEADY" in ended.stdout) is (runs == 2)
