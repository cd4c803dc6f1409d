"""A real Prefect server on loopback, with a database of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

START_SECONDS = 90


def free_port() -> int:
    """A port on loopback that nobody listened on just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def prefect_server(home: Path) -> Iterator[str]:
    """Run a server with its database in `home`; yields the URL of its API."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"],
            env=os.environ
            | {
                "PREFECT_HOME": str(home),
                "PREFECT_SERVER_API_PORT": str(port),
                "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
                "DO_NOT_TRACK": "1",
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(url, server, home / "server.log")
        yield url
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_healthy(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(f"no answer in {START_SECONDS} s: {log.read_text()}")
