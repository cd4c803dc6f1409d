"""Prefect's API for a run that has no server: a process that lives as long as the run.

Prefect's temporary server shares the process group, so that Ctrl+C ends it before the run could
report how it ended; it goes on when the run is killed; and it drops what it has not yet written
when it is stopped. This one ignores Ctrl+C, ends when its parent does, and is ended only when it
has recorded all that it was told.

It is a fork of the command: what Prefect's client and its server both import is imported once. It
is forked before the command starts any thread, and gets ready while the command plans.
"""

import os
import select
import signal
import socket
import time
from contextlib import suppress

from flows.forked import fork
from flows.prefect_api.database import home
from flows.prefect_api.embedded_server import READY, STOP_SECONDS, serve
from streaming_ext.errors import StorageError

START_SECONDS = 180.0  # some six on an idle machine; one that ends earlier is told at once


class EmbeddedApi:
    """The API, from the moment at which its process is forked.

    Attributes:
        url: of the API; it answers once `wait` has returned.
        pid: of the process.
    """

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            parent_lives, self._end = os.pipe()  # closed by the system when this process dies
            self._ready, is_ready = os.pipe()
            self.pid = fork(
                lambda: serve(listener, parent_lives, is_ready),
                keep={listener.fileno(), parent_lives, is_ready},
            )
        os.close(parent_lives)
        os.close(is_ready)
        self._ended = False

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            StorageError: it ended, as where its database cannot be written, or does not answer
                in time.
        """
        # Told through a pipe: a request could end up at a proxy.
        if not select.select([self._ready], [], [], START_SECONDS)[0]:
            raise StorageError(f"Prefect's embedded API is not ready within {START_SECONDS:.0f} s.")
        told = os.read(self._ready, select.PIPE_BUF)
        if told != READY:
            reason = told.decode(errors="replace") or "it was killed, or ended by itself"
            raise StorageError(
                f"Prefect's embedded API ended before it was ready: {reason}. It keeps its "
                f"database in {home()}, which must be whole, with room, and this user's to write "
                "to: mend that, or set PREFECT_HOME to another folder."
            )

    def stop(self, *, recorded: bool) -> None:
        """End the process.

        Args:
            recorded: all is written down, so that nothing is lost where it is killed.
        """
        self.let_go()
        deadline = time.monotonic() + (0.0 if recorded else STOP_SECONDS)
        while not self._is_gone():
            if time.monotonic() >= deadline:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return
            time.sleep(0.02)

    def let_go(self) -> None:
        """Have the process end by itself, within seconds, without waiting for it."""
        if not self._ended:
            self._ended = True
            os.close(self._end)
            os.close(self._ready)

    def _is_gone(self) -> bool:
        with suppress(ChildProcessError):
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return True
