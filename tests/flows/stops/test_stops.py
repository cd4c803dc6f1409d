"""Signals end a command wherever the main thread happens to be."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# The signal arrives in a destructor: Python prints what is raised there, and goes on.
SWALLOWED = """
import signal, time
from flows.stops import Stopped, stop_by_signals, taken

class Destroyed:
    def __del__(self):
        signal.raise_signal({number})
        for _ in range(100): pass

stop_by_signals()
try:
    Destroyed()
    print("swallowed", flush=True)
    time.sleep(600)
except (KeyboardInterrupt, Stopped) as stop:
    time.sleep({handled})  # while it is handled, nothing is raised
    taken()
    print(type(stop).__name__, flush=True)
time.sleep({handled})
print("once", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGHUP, "Stopped"),
        (signal.SIGTERM, "Stopped"),
        (signal.SIGINT, "Interrupted"),
    ],
)
def test_one_that_was_swallowed_comes_again(number: signal.Signals, name: str) -> None:
    code = SWALLOWED.format(number=int(number), handled=0.6)
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.stdout.split() == ["swallowed", name, "once"], ended.stderr
    assert "Exception ignored" in ended.stderr


# What Prefect holds for a server that is gone, it tries to send when the interpreter exits.
LEAVING = """
import atexit, sys
import prefect
from flows.cli import main
atexit.register(print, "waited")
sys.argv = ["shardmill", *sys.argv[1:]]
main()
"""


def test_a_command_that_loaded_prefect_does_not_wait_for_the_interpreter_s_exit(
    dataset: Path,
) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", LEAVING, "inspect", str(dataset)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "tokens" in ended.stdout
    assert "waited" not in ended.stdout
