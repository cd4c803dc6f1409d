"""The servers and folders that all processes of a test run share; the first to need one makes it.

The process that the user started, which is pytest-xdist's controller if there are several, makes
the folder for all of them. It ends the servers and removes the folder when the run is over.
"""

import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

VARIABLE = "SHARDMILL_TESTS_SHARED"  # the folder, for pytest-xdist's workers
STOP_SECONDS = 20
_SERVER = ".server.json"


def begin() -> Path:
    """Make the folder of this run."""
    made = Path(tempfile.mkdtemp(prefix="shardmill-tests-"))
    os.environ[VARIABLE] = str(made)
    return made


def root() -> Path:
    """Return the folder of this run."""
    return Path(os.environ[VARIABLE])


def server(name: str, start: Callable[[Path], tuple[str, int]]) -> str:
    """Return the address of a server; start it unless another process did.

    Args:
        name: the name of the server.
        start: a function that gets a folder for the server's files, starts it in a session of its
            own, and returns its address and its process id.
    """

    def begin(home: Path) -> None:
        address, pid = start(home)
        state = home.with_name(f"{name}{_SERVER}")
        state.write_text(json.dumps({"address": address, "pid": pid}))

    home = folder(name, begin)
    return str(json.loads(home.with_name(f"{name}{_SERVER}").read_text())["address"])


def folder(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` has filled, in this process or another."""
    made = root() / name
    done = made.with_name(f"{name}.done")
    with made.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            made.mkdir(exist_ok=True)
            make(made)
            done.touch()
    return made


def end(made: Path) -> None:
    """End all servers, and remove their files."""
    os.environ.pop(VARIABLE)
    for state in made.glob(f"*{_SERVER}"):
        with suppress(psutil.NoSuchProcess):
            _end(psutil.Process(json.loads(state.read_text())["pid"]))
    shutil.rmtree(made)


def _end(server: psutil.Process) -> None:
    children = server.children(recursive=True)
    server.terminate()
    _, left = psutil.wait_procs([server, *children], timeout=STOP_SECONDS)
    if left:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        psutil.wait_procs(left, timeout=STOP_SECONDS)
