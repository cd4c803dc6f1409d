"""Processes that are forked from a warm one, a child of this process."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from tests.warm.nursery import Forked, Nursery

WARM = os.environ.get("SHARDMILL_TESTS_COLD") != "1"  # to look whether a failure is the fork's
_STARTED: list["subprocess.Popen[bytes]"] = []  # Python complains of processes that nobody holds


@cache
def _nursery() -> Nursery:
    """The warm process of this process, started by the first command."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm.server", str(theirs.fileno())],
            cwd=Path(__file__).parents[2],
            pass_fds=[theirs.fileno()],
            env={
                **kept,
                "OPENBLAS_NUM_THREADS": "1",  # of its threads, a fork has none
                "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            },
        )
    _STARTED.append(process)
    return Nursery(ours)


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
) -> "subprocess.Popen[str]":
    """Start `python -P -m MODULE ARGUMENTS...`, in a fork of the warm process or by itself.

    Args:
        module: that it runs.
        arguments: of it.
        env: its whole environment.
        warm: whether it is a fork.
        new_session: whether it gets a session, and so a process group, of its own.
        folder: that it works in, this process's by default.
        log: file for what it prints; without one, that goes into pipes.
    """
    started: type[subprocess.Popen[str]] = WarmCommand if warm else subprocess.Popen  # type: ignore
    return started(
        [sys.executable, "-P", "-m", module, *arguments],
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL if warm else None,
        stdout=log or subprocess.PIPE,
        stderr=log or subprocess.PIPE,
        text=True,
        start_new_session=new_session,
    )
