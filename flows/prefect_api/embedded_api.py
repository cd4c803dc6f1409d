"""Prefect's API for a run that has no server: a process that lives as long as the run.

Prefect's temporary server shares the process group, so that Ctrl+C ends it before the run could
report how it ended; it goes on when the run is killed; and it drops what it has not yet written
when it is stopped. This one ignores Ctrl+C, ends when its parent does, and is ended only when it
has recorded all that it was told.

It is a fork of the command: what Prefect's client and its server both import is imported once. It
is forked before the command starts any thread, and gets ready while the command plans.
"""

import gc
import os
import select
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import NoReturn

START_SECONDS = 180.0  # some six on an idle machine; one that ends earlier is told at once
# Nobody looks at it or automates it while it lives: the states of runs are all that it records.
# One at a time, it falls behind many small files; what makes no whole batch is written each second.
_SERVER_SETTINGS = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",  # it loads every collection to tell
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "50",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PY_KEY_VALUE_DISABLE_BEARTYPE": "true",  # checks of types, compiled anew at each start
}
_STOP_SECONDS = 5.0


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
            self.pid = os.fork()
            if not self.pid:
                _serve(listener, parent_lives, is_ready)
        os.close(parent_lives)
        os.close(is_ready)
        self._ended = False

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            RuntimeError: it ended, or does not answer in time.
        """
        # Told through a pipe: a request could end up at a proxy.
        if not select.select([self._ready], [], [], START_SECONDS)[0]:
            raise RuntimeError(f"Prefect's embedded API is not ready within {START_SECONDS:.0f} s.")
        if not os.read(self._ready, 1):
            raise RuntimeError("Prefect's embedded API ended before it was ready.")

    def stop(self, *, recorded: bool) -> None:
        """End the process.

        Args:
            recorded: all is written down, so that nothing is lost where it is killed.
        """
        self.let_go()
        deadline = time.monotonic() + (0.0 if recorded else _STOP_SECONDS)
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


def _serve(listener: socket.socket, parent_lives: int, is_ready: int) -> NoReturn:
    """Be the API's process, forked from the command, to its end."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)  # Ctrl+C is not for it; a session of its own would void its niceness
        gc.disable()  # starting makes a million objects that stay
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        kept = {0, 1, 2, listener.fileno(), parent_lives, is_ready}
        for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  (numbers)
            if descriptor not in kept:
                with suppress(OSError):  # the one that listed them
                    os.close(descriptor)
        os.environ.update(_SERVER_SETTINGS)
        _run_server(listener, parent_lives, is_ready)
        code = 0
    finally:
        os._exit(code)  # never back into the command, whose process this is no more


def _run_server(listener: socket.socket, parent_lives: int, is_ready: int) -> None:
    import uvicorn
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()  # those of the command were read before the fork

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                gc.freeze()
                gc.enable()
                os.write(is_ready, b"+")
                os.nice(19)  # from here on: records can wait for the work that they are of

    server = Server(
        uvicorn.Config(
            "prefect.server.api.server:create_app",
            factory=True,
            log_level="error",
            lifespan="on",
            timeout_graceful_shutdown=2,
        )
    )

    def end_with_parent() -> None:
        while os.read(parent_lives, 1):
            pass
        server.should_exit = True
        time.sleep(_STOP_SECONDS)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    server.run(sockets=[listener])
