"""One command, given again whenever it ended before its work was done."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.command_line import workers_of

_GOES_ON = {1, -signal.SIGKILL}  # it failed and said why, or we killed it
_TAIL = 4000


class Command:
    """`shardmill shard`, its processes in a group of their own, each start with a log of its own.

    Args:
        arguments: the arguments of the command.
        environment: the environment of its processes.
        logs: the folder of its output.
        most: the number of commands after which something is wrong.
    """

    def __init__(
        self, arguments: Sequence[object], environment: Mapping[str, str], logs: Path, most: int
    ) -> None:
        self._command = [sys.executable, "-P", "-m", "flows.cli", *map(str, arguments)]
        self._environment = environment
        self._logs = logs
        self._most = most
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Give the command."""
        assert self.starts < self._most, f"not done by {self._most} commands: {self.said()}"
        self.starts += 1
        self._logs.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return self._logs / f"{self.starts:03}.log"

    def said(self) -> str:
        """The end of what the last command printed."""
        return self._log.read_text()[-_TAIL:]

    @property
    def ended(self) -> bool:
        """True if it has ended, well or not."""
        return self._process is not None and self._process.poll() is not None

    def is_done(self) -> bool:
        """Return True if its work is done; give it again if it ended before that.

        Raises:
            AssertionError: it ended as no fault should make it end.
        """
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return False
        assert "Traceback" not in self._log.read_text(), self.said()
        if code == 0:
            return True
        assert code in _GOES_ON, f"exit code {code}: {self.said()}"
        self.start()
        return False

    def workers(self) -> list[int]:
        """Its worker processes, of both kinds."""
        assert self._process is not None
        return sorted(worker.pid for worker in workers_of(self._process.pid))

    def kill(self, *, alone: bool) -> None:
        """kill -9 of the process itself, or of its workers too."""
        assert self._process is not None
        (os.kill if alone else os.killpg)(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it, whatever it does."""
        if self._process is not None and not self.ended:
            self.kill(alone=False)
