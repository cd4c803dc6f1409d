"""Processes that are forked from a warm one: children of this process, and programs of shells."""

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

PROGRAMS = {"shardmill": "flows.cli", "prefect": "prefect"}  # by name, the module that is run
WARM = os.environ.get("SHARDMILL_TESTS_COLD") != "1"  # to look whether a failure is the fork's
_STARTED: list["subprocess.Popen[bytes]"] = []  # Python complains of processes that nobody holds


@cache
def _nursery() -> Nursery:
    """The warm process of this process, started by the first command."""
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
                "OPENBLAS_NUM_THREADS": "1",  # of its threads, a fork has none
                "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            },
        )
    _STARTED.append(process)
    return Nursery(ours)


def _address() -> Path:
    return shared.root() / f"warm.{os.getpid()}"


def warm_programs() -> Path:
    """A folder of programs that are as those of the same names in `PATH`, but for their start."""
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
        warm: true for a fork of the warm process.
        new_session: true for a session, and so a process group, of its own.
        folder: the working folder; by default that of this process.
        log: the file for its output; without one, that goes into pipes.
        prefix: the command below which it starts by itself, such as one that enters a namespace.
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
