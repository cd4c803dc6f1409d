"""A real Prefect server on loopback, with its own database."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from tests.servers.answering import wait_for_answer
from tests.servers.prefect.database import give_database
from tests.warm import start_module

# One for all requests: each client reads the system's certificates, which takes 30 ms.
_CLIENT = httpx.Client(timeout=90, limits=httpx.Limits(max_keepalive_connections=0))


def free_port() -> int:
    """Return a port on loopback on which nobody listened just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def ask(method: str, url: str, *, seconds: float = 240.0, **body: Any) -> Any:
    """Send a request to a Prefect server, again if it is busy or away, and return the answer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = _CLIENT.request(method, url, json=body or None)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                answer.raise_for_status()
                return answer.json() if answer.content else None
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, "the server is busy"
        time.sleep(0.5)


def runs_named(api: str, name: str) -> list[dict[str, Any]]:
    """Return the flow runs of a name, the latest first."""
    named = {"name": {"any_": [name]}}
    sort = "EXPECTED_START_TIME_DESC"
    return list(ask("POST", f"{api}/flow_runs/filter", flow_runs=named, sort=sort))


def artifacts_of(api: str, run: str) -> dict[str, dict[str, Any]]:
    """Return the artifacts of a flow run by key; each key has one."""
    found = ask("POST", f"{api}/artifacts/filter", flow_runs={"id": {"any_": [run]}})
    assert len({artifact["key"] for artifact in found}) == len(found)
    return {artifact["key"]: artifact for artifact in found}


class PrefectServer:
    """A server that a test may kill and start again, on the same port and database.

    Args:
        home: the folder for its log, and for its database unless `settings` name another.
        settings: more environment variables.
    """

    def __init__(self, home: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._home = home
        self._port = free_port()
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """The URL of the API."""
        return f"http://127.0.0.1:{self._port}/api"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        if not any(name.endswith("DATABASE_CONNECTION_URL") for name in self._settings):
            give_database(self._home)
        log = self._home / "server.log"
        with log.open("ab") as out:
            self._process = start_module(
                "prefect",
                ["server", "start", "--host", "127.0.0.1"],
                os.environ
                | {
                    "PREFECT_HOME": str(self._home),
                    "PREFECT_SERVER_API_PORT": str(self._port),
                    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
                    "DO_NOT_TRACK": "1",
                    **self._settings,
                },
                new_session=True,
                log=out,
            )
        wait_for_answer(self._process, f"{self.url}/health", log)

    @property
    def pid(self) -> int:
        """The id of its first process, which leads the process group."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill all its processes with kill -9."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End the server as systemd does."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


_OUTLIVING: list[PrefectServer] = []  # Python complains of processes that nothing refers to


def start_prefect_server(home: Path) -> tuple[str, int]:
    """Start a server that outlives this process; return the URL of its API and its process id."""
    server = PrefectServer(home)
    server.start()
    _OUTLIVING.append(server)
    return server.url, server.pid
