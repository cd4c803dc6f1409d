"""Prefect's API for a run without a configured server: a Prefect server in a child process.

Prefect's temporary server shares the command's process group, so Ctrl+C ends it before the run has
reported its end, and it keeps running if the command is killed. The server here ends when its
standard input is closed, which the system does when the command dies.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
from contextlib import nullcontext, suppress

from streaming_ext.base.errors import StorageError
from streaming_ext.own_module import start_module

END_SECONDS = 10  # for the server to write its records
LOCK_SECONDS = 600  # for the servers of other commands to start
FLUSH_SECONDS = 1  # between two writes of records; Prefect drops fractions
# The server lives as long as one run, so nobody looks at it, automates it or reads its blocks.
_SETTINGS = {
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "50",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": str(FLUSH_SECONDS),
}


class OwnServer:
    """The process of the server, which takes some seconds to answer; it ends with the block.

    The process imports Prefect when it is made, and starts the server when `serve` is called. The
    command plans its work between the two, and if that fails, no server is started.
    """

    def __init__(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed in __exit__)
        self._process = start_module(
            "flows.prefect_api.own_server",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            start_new_session=True,  # Ctrl+C must not reach it
        )

        self._serves = False

    def __enter__(self) -> "OwnServer":
        return self

    def __exit__(self, *_: object) -> None:
        with self._process, self._output:
            if not self._serves:
                self._process.kill()
            try:
                self._process.communicate(timeout=END_SECONDS)  # closes its standard input
            except subprocess.TimeoutExpired:
                self._process.kill()

    def serve(self) -> None:
        """Make the process start the server as soon as it can; `url` does so too."""
        assert self._process.stdin is not None  # noqa: S101  (it is a pipe)
        self._serves = True
        with suppress(BrokenPipeError):  # if the process ended, `url` says why
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def url(self) -> str:
        """Wait until the API answers, and return its URL.

        Raises:
            StorageError: the process ended, for example because it cannot write its database.
        """
        from prefect.settings import get_current_settings

        self.serve()
        assert self._process.stdout is not None  # noqa: S101  (it is a pipe)
        if url := self._process.stdout.readline().decode().strip():
            return url
        self._process.wait()
        self._output.seek(0)
        text = self._output.read().decode(errors="replace")
        errors = re.findall(r"^[\w.]+Error: .+", text, re.MULTILINE) or text.splitlines()
        raise StorageError(
            f"Prefect's own server did not start: {(errors or ['killed'])[-1]}. Its database is in "
            f"{get_current_settings().home}. If another server uses it, pass its URL in "
            "PREFECT_API_URL; otherwise repair it, or set PREFECT_HOME to another folder."
        )


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    signal.alarm(END_SECONDS)  # ends the process if its server does not end
    os.kill(os.getpid(), signal.SIGTERM)


async def _serve() -> None:
    """Print the URL of the API once it answers; return when the server has ended."""
    import uvicorn
    from filelock import FileLock
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    if get_current_settings().api.url:
        return  # the command uses the server that a profile names
    home = get_current_settings().home
    home.mkdir(parents=True, exist_ok=True)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(ephemeral=True), log_level="error", lifespan="on", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    # Servers that start at once could not make one database. A read-only folder gets none.
    lock = FileLock(home / "shardmill.lock", LOCK_SECONDS)
    with lock if os.access(home, os.W_OK) else nullcontext():
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.02)
    if server.started:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/api", flush=True)
    await serving


if __name__ == "__main__":  # serve until the command closes its end of the standard input, or dies
    os.environ.update(_SETTINGS)
    import prefect.server.api.server  # noqa: F401  (most of the seconds)

    if os.read(0, 1):
        threading.Thread(target=_end_with_parent, daemon=True).start()
        asyncio.run(_serve())
