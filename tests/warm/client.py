"""Processes forked from a warm one: children of this process, and programs for shells."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from tests.servers import shared
from tests.warm.nursery import Forked, Nursery

PROGRAMS = {"shardmill": "flows.cli", "prefect": "prefect"}  # program -> the module that it runs
WARM = os.environ.get("SHARDMILL_TESTS_COLD") != "1"  # to see if a failure comes from forking
_STARTED: list["subprocess.Popen[bytes]"] = []  # Python complains of processes that nobody holds


@cache
def _nursery() -> Nursery:
    """Return the warm process of this process; the first command starts it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(_address()))
        listener.listen()
        descriptors = [theirs.fileno(), listener.fileno()]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm.server", *map(str, descriptors)],
            cwd=Path(__file__).parents[2],
            pass_fds=descriptors,
            env={
                **kept,
                "OPENBLAS_NUM_THREADS": "1",  # a fork would lack its threads
                "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            },
        )
    _STARTED.append(process)
    return Nursery(ours)


def _address() -> Path:
    return shared.root() / f"warm.{os.getpid()}"


def warm_programs() -> Path:
    """Return a folder of programs that are like those in `PATH` but start faster."""
    if not WARM:
        return Path(sys.executable).parent
    folder = shared.root() / f"programs.{os.getpid()}"
    if not folder.exists():
        folder.mkdir()
        _nursery()
        text = Path(__file__).with_name("program.py").read_text()
        for name, module in PROGRAMS.items():
            chosen = f"MODULE, ADDRESS = {module!r}, {str(_address())!r}\n"
            (folder / name).write_text(f"#!{sys.executable} -IS\n{text}\n{chosen}main()\n")
            (folder / name).chmod(0o755)
    return folder


class WarmCommand(Forked):
    """`python -P -m MODULE ARGUMENTS...` in a fork of the warm process."""

    @property
    def nursery(self) -> Nursery:  # type: ignore[override]
        """The warm process."""
        return _nursery()


def start_module(
    module: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    warm: bool = WARM,
    new_session: bool = False,
    folder: Path | None = None,
    log: IO[bytes] | None = None,
    prefix: Sequence[str] = (),
) -> "subprocess.Popen[str]":
    """Start `python -P -m MODULE ARGUMENTS...`, in a fork of the warm process or by itself.

    Args:
        module: the module to run.
        arguments: the arguments of the module.
        env: the whole environment of the process.
        warm: True for a fork of the warm process.
        new_session: True for its own session, and so its own process group.
        folder: the working folder; by default that of this process.
        log: the file for its output; without one, the output goes into pipes.
        prefix: a command that runs it as a new process, such as one that enters a namespace.
    """
    warm = warm and not prefix
    started: type[subprocess.Popen[str]] = WarmCommand if warm else subprocess.Popen  # type: ignore
    return started(
        [*prefix, sys.executable, "-P", "-m", module, *arguments],
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL if warm else None,
        stdout=log or subprocess.PIPE,
        stderr=log or subprocess.PIPE,
        text=True,
        start_new_session=new_session,
    )
