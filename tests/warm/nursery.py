"""Forks for a process with threads: its nursery, forked before it had any, makes them.

A process that a nursery forks is a child of the requesting process, as if that had started it.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

NURSERY = "nursery"  # the name of such a process, to tell it from a host's others
MESSAGE_BYTES = 2**18
_SET_CHILD_SUBREAPER = 36  # of `prctl`: orphans below this process become its children


class Nursery:
    """A child of this process that forks for it; the child ends with this process.

    Args:
        control: this process's end of the socket on which the nursery serves.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._system = ctypes.CDLL(None)

    @classmethod
    def forked(cls, be: Callable[[dict[str, Any]], NoReturn]) -> Self:
        """Return a nursery that is a fork of this process, which has no thread yet."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            ours.close()
            serve(theirs, be)
        theirs.close()
        return cls(ours)

    def fork(self, request: dict[str, Any], streams: Sequence[int]) -> int:
        """Have a new child of this process do a request, and return the child's pid.

        Args:
            request: a value for JSON.
            streams: the standard streams of the child, -1 for one of this process, and then the
                descriptors that it keeps open.
        """
        given = [number if stream == -1 else stream for number, stream in enumerate(streams)]
        with self._lock:
            self._adopt(orphans=True)
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], given)
                answer = self._control.recv(64)
            finally:
                self._adopt(orphans=False)
        assert answer, "the nursery has ended"
        return int(answer)

    def _adopt(self, *, orphans: bool) -> None:
        failed = self._system.prctl(_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)
        assert not failed, "prctl"


class Forked(subprocess.Popen[bytes]):
    """Programs of this process as children that its nursery forks; others start as usual.

    The function `be` of the nursery gets the words of the command, its folder and environment, and
    whether it has its own session.
    """

    nursery: Nursery

    @staticmethod
    def is_ours(words: Sequence[str]) -> bool:
        """Return whether a command is one that the nursery forks."""
        return True

    def _execute_child(self, *arguments: Any) -> None:
        """Fork instead of starting anew; `Popen` calls this (see CPython's source)."""
        request = {
            "words": list(map(str, arguments[0])),
            "folder": os.fspath(arguments[5] or Path.cwd()),
            "environment": dict(arguments[6] or os.environ),
            "new_session": arguments[21],
        }
        if not self.is_ours(request["words"]):
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = arguments[10:16]
        self.pid = self.nursery.fork(request, (p2cread, c2pwrite, errwrite, *arguments[4]))
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self._child_created = True


def serve(control: socket.socket, be: Callable[[dict[str, Any]], NoReturn]) -> NoReturn:
    """Fork for each request; `be` does it in the child, whose standard streams are set.

    A process in between forks and ends: the child is then an orphan, which the requester adopts.
    """
    comm = Path("/proc/self/comm")
    name = comm.read_text()
    comm.write_text(NURSERY)
    stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(stop, signal.SIG_IGN) for stop in stops]
    while True:
        message, streams, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 16)
        if not message:
            os._exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(tell, str(child).encode())
                os._exit(0)
            comm.write_text(name)
            for stop, handler in zip(stops, before, strict=True):
                signal.signal(stop, handler)
            control.close()
            os.close(told)
            os.close(tell)
            set_streams(streams[:3])  # further ones stay open
            be(json.loads(message))
        os.waitpid(between, 0)
        for descriptor in (tell, *streams):
            os.close(descriptor)
        control.send(os.read(told, 64))
        os.close(told)


def set_streams(streams: Sequence[int]) -> None:
    """Make descriptors the standard streams of this process."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout = os.fdopen(1, "w", closefd=False)  # the inherited one takes a pipe for a file
