"""Signals end a command wherever the main thread happens to be."""

import signal
import subprocess
import sys

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
