"""A `subprocess.Popen` whose process is forked from a warm one."""

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PIDS_BYTES = 64


class _Server:
    """The warm process of this process, started by the first command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Have a request done, with these as standard streams and for its status; the pid."""
        with self._lock:
            self._control = self._control or self._start()
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            answer = self._control.recv(PIDS_BYTES)
        assert answer, "the warm process has ended"
        return int(answer)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm.server", str(theirs.fileno())],
                cwd=Path(__file__).parents[2],
                pass_fds=[theirs.fileno()],
                env={
                    **{name: value for name, value in os.environ.items()
                       if not name.startswith("PREFECT_")},
                    "OPENBLAS_NUM_THREADS": "1",  # of its threads, a fork has none
                    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
                    "PY_KEY_VALUE_DISABLE_BEARTYPE": "true",  # as the embedded API has it
                },
            )  # fmt: skip
        return ours


_SERVER = _Server()


class WarmCommand(subprocess.Popen[str]):
    """`python -P -m MODULE ARGUMENTS...` with pipes for its output, in a fork of the warm process.

    Args:
        module: that it runs.
        arguments: of it.
        env: its whole environment.
        new_session: whether it gets a session, and so a process group, of its own.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        new_session: bool = False,
    ) -> None:
        self._request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(env),
            "folder": str(Path.cwd()),
            "new_session": new_session,
        }
        self._status = -1
        super().__init__(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _execute_child(self, *arguments: Any) -> None:
        """What `Popen` calls with the ends of its pipes among others; see CPython's source."""
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = arguments[10:16]
        self._status, told = os.pipe()
        try:
            self.pid = _SERVER.fork(self._request, [p2cread, c2pwrite, errwrite, told])
        finally:
            os.close(told)
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self._child_created = True

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        """As `Popen`'s, which asks the system for a child of this process."""
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """The pid and the status that the warm process collected; 0 where it has not yet."""
        ready = select.poll()
        ready.register(self._status, select.POLLIN)
        if not ready.poll(0 if wait_flags & os.WNOHANG else None):
            return 0, 0
        told = os.read(self._status, 16)
        os.close(self._status)
        assert told, "the warm process was killed, and nobody knows how its commands ended"
        return self.pid, int(told)
