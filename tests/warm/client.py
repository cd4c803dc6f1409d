"""Processes that are forked from a warm one: of this process, and of shells."""

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.servers import shared

PIDS_BYTES = 64
PROGRAMS = {"shardmill": "flows.cli", "prefect": "prefect"}  # by name, the module that is run
WARM = os.environ.get("SHARDMILL_TESTS_COLD") != "1"  # to look whether a failure is the fork's


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

    def address(self) -> Path:
        """The socket that programs ask."""
        with self._lock:
            self._control = self._control or self._start()
        return self._address()

    def _address(self) -> Path:
        return shared.root() / f"warm.{os.getpid()}"

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, listener:
            listener.bind(str(self._address()))
            listener.listen()
            descriptors = [theirs.fileno(), listener.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm.server", *map(str, descriptors)],
                cwd=Path(__file__).parents[2],
                pass_fds=descriptors,
                env={
                    **{
                        name: value
                        for name, value in os.environ.items()
                        if not name.startswith("PREFECT_")
                    },
                    "OPENBLAS_NUM_THREADS": "1",  # of its threads, a fork has none
                    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
                },
            )
        return ours


_SERVER = _Server()


def warm_programs() -> Path:
    """A folder of programs that are as those of the same names in `PATH`, but for their start."""
    if not WARM:
        return Path(sys.executable).parent
    folder = shared.root() / f"programs.{os.getpid()}"
    if not folder.exists():
        folder.mkdir()
        text = Path(__file__).with_name("program.py").read_text()
        for name, module in PROGRAMS.items():
            chosen = f"MODULE, ADDRESS = {module!r}, {str(_SERVER.address())!r}\n"
            (folder / name).write_text(f"#!{sys.executable} -IS\n{text}\n{chosen}main()\n")
            (folder / name).chmod(0o755)
    return folder


class WarmCommand(subprocess.Popen[str]):
    """`python -P -m MODULE ARGUMENTS...` in a fork of the warm process.

    Args:
        module: that it runs.
        arguments: of it.
        env: its whole environment.
        new_session: whether it gets a session, and so a process group, of its own.
        folder: that it works in, this process's by default.
        log: file for what it prints; without one, that goes into pipes.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        new_session: bool = False,
        folder: Path | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        self._request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(env),
            "folder": str(folder or Path.cwd()),
            "new_session": new_session,
        }
        self._status = -1
        super().__init__(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log or subprocess.PIPE,
            stderr=log or subprocess.PIPE,
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

    The other arguments are those of `WarmCommand`.
    """
    if warm:
        return WarmCommand(module, arguments, env, new_session=new_session, folder=folder, log=log)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        env=env,
        cwd=folder,
        stdout=log or subprocess.PIPE,
        stderr=log or subprocess.PIPE,
        text=True,
        start_new_session=new_session,
    )
