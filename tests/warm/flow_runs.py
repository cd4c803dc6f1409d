"""The flow runs of a Prefect worker as forks, where the worker is one.

Prefect's worker starts two programs for each run, the second in the process of the first, and each
imports Prefect: what prepares the run, and its engine. Here a process that the worker forks before
it has threads, its nursery, forks for each run. What comes of it is a child of the worker all the
same, with session, group, signals, streams, folder and environment as the worker chose them.
"""

import asyncio.unix_events
import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

NURSERY = "nursery"  # the name of such a process, for whoever counts those of a host
PREPARATION, ENGINE = "prefect.runner._workspace_supervisor", "prefect.engine"
MESSAGE_BYTES = 2**18
_SET_CHILD_SUBREAPER = 36  # of `prctl`: orphans below this process become children of it


def fork_flow_runs() -> None:
    """Have flow runs that this process starts be forks; it has no thread yet, nor Prefect.

    It returns in the worker alone.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        _be_nursery(theirs)
    theirs.close()
    _ForkedRun.nursery.control = ours
    vars(asyncio.unix_events)["subprocess"] = SimpleNamespace(
        Popen=_ForkedRun, PIPE=subprocess.PIPE
    )


class _Nursery:
    """The worker's end of it."""

    control: socket.socket

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._system = ctypes.CDLL(None)

    def fork(self, request: dict[str, Any], streams: Sequence[int]) -> int:
        """Have a request done by a new child of this process; its pid."""
        with self._lock:
            self._adopt(orphans=True)
            try:
                socket.send_fds(self.control, [json.dumps(request).encode()], streams)
                answer = self.control.recv(64)
            finally:
                self._adopt(orphans=False)
        assert answer, "the nursery has ended"
        return int(answer)

    def _adopt(self, *, orphans: bool) -> None:
        failed = self._system.prctl(_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)
        assert not failed, "prctl"


class _ForkedRun(subprocess.Popen[bytes]):
    """`python -m MODULE ARGUMENTS...` of a flow run as a fork; all else is started as ever."""

    nursery = _Nursery()

    def _execute_child(self, *arguments: Any) -> None:
        """What `Popen` calls with the ends of its pipes among others; see CPython's source."""
        words = list(map(str, arguments[0]))
        if not _is_of_a_run(words):
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        request = {
            "words": words,
            "folder": os.fspath(arguments[5] or Path.cwd()),
            "environment": dict(arguments[6] or os.environ),
            "new_session": arguments[21],
        }
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = arguments[10:16]
        ends = enumerate((p2cread, c2pwrite, errwrite))
        streams = [number if end == -1 else end for number, end in ends]
        self.pid = self.nursery.fork(request, streams)
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self._child_created = True


def _is_of_a_run(words: Sequence[str]) -> bool:
    return words[:2] == [sys.executable, "-m"] and words[2] in {PREPARATION, ENGINE}


def _be_nursery(control: socket.socket) -> NoReturn:
    """Fork for each request, and end with the worker.

    A process in between forks and ends, so that the run's is an orphan, which the worker adopts.
    """
    Path("/proc/self/comm").write_text(NURSERY)
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_IGN)
    while True:
        message, streams, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if not between:
            run = os.fork()
            if not run:
                control.close()
                os.close(told)
                os.close(tell)
                _be_run(json.loads(message), streams)
            os.write(tell, str(run).encode())
            os._exit(0)
        os.waitpid(between, 0)
        for descriptor in (tell, *streams):
            os.close(descriptor)
        control.send(os.read(told, 64))
        os.close(told)


def _be_run(request: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """What `Popen` and Python do before a module begins; and the module."""
    Path("/proc/self/comm").write_text("python")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_DFL)
    if request["new_session"]:
        os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    words, folder, environment = request["words"], request["folder"], request["environment"]
    if words[2] == PREPARATION:
        words, folder, environment = _prepared(words, folder, environment)
    _become(words, folder, environment)


def _prepared(
    words: list[str], folder: str, environment: dict[str, str]
) -> tuple[list[str], str, dict[str, str]]:
    """Have a child prepare a run, and tell the program that it would go on as."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:

        def go_on_as(_: str, words: list[str], environment: dict[str, str]) -> NoReturn:
            with os.fdopen(tell, "w") as out:
                json.dump([words, str(Path.cwd()), environment], out)
            os._exit(0)

        os.close(told)
        os.execvpe = go_on_as  # type: ignore[assignment]
        _become(words, folder, environment)
    os.close(tell)
    with os.fdopen(told) as answer:
        message = answer.read()
    _, status = os.waitpid(child, 0)
    if not message:  # it could not be prepared, and the child has said why
        os._exit(abs(os.waitstatus_to_exitcode(status)))
    prepared: tuple[list[str], str, dict[str, str]] = tuple(json.loads(message))
    return prepared


def _become(words: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Go on as `python -m MODULE ARGUMENTS...`, or by a new start as another program."""
    os.chdir(folder)
    if not _is_of_a_run(words):
        os.execvpe(words[0], words, environment)  # noqa: S606
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = words[2:]
    runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    sys.exit()
