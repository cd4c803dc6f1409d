"""The server that a run starts if none is configured."""

import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from prefect import flow, task
from prefect.runtime import flow_run

from flows.prefect_api.connection import api_in_use
from flows.prefect_api.own_server import OwnServer
from streaming_ext.base.errors import StorageError
from tasks.core.reporting.progress import RunProgress
from tests.streaming_ext.processes import in_processes
from tests.tasks.core.reporting.test_report import make_report

TASKS = 60  # more than its server records at once


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """Prefect's folder; neither this folder nor its parent exists yet."""
    made = tmp_path / "above/prefect"
    monkeypatch.setenv("PREFECT_HOME", str(made))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return made


def is_own_server(process: psutil.Process) -> bool:
    return "flows.prefect_api.own_server" in process.cmdline()


def run_tasks(_: int) -> int:
    """Run tasks in a flow on an `OwnServer`, and return the id of the server's process.

    Prefect leaves something behind that ends each later fork of this process with exit code 1.
    """
    progress = RunProgress()
    progress.report, progress.tasks = make_report(), TASKS
    with OwnServer() as server, api_in_use(server, progress):
        (process,) = (each for each in psutil.Process().children() if is_own_server(each))
        listening = [
            each.laddr.ip
            for each in process.net_connections(kind="inet")
            if each.status == psutil.CONN_LISTEN
        ]
        assert listening == ["127.0.0.1"]
        work = task(lambda number: number)

        def run() -> None:
            progress.run = str(flow_run.id)
            for each in work.map(range(TASKS)):
                each.result()

        flow(run)()
    return process.pid


def test_it_records_all_asks_no_proxy_and_listens_on_loopback_alone(home, monkeypatch) -> None:
    monkeypatch.setenv("PREFECT_SERVER_API_HOST", "0.0.0.0")  # noqa: S104  (for another server)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        (process,) = in_processes(1, run_tasks)
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody connected
            print(proxy.accept()[0].recv(1000))
    assert not psutil.pid_exists(process)
    with closing(sqlite3.connect(home / "prefect.db")) as records:
        for table, count in (("flow_run", 1), ("task_run", TASKS)):
            states = f"SELECT state_type, count(*) FROM {table} GROUP BY state_type"  # noqa: S608
            assert records.execute(states).fetchall() == [("COMPLETED", count)]


def test_nothing_is_served_before_it_is_asked_for(home) -> None:
    with OwnServer():
        (process,) = (each for each in psutil.Process().children() if is_own_server(each))
        with pytest.raises(psutil.TimeoutExpired):
            process.wait(1)
    assert not process.is_running()
    assert not home.exists()


def test_servers_that_start_at_once_make_one_database(home) -> None:
    with OwnServer() as first, OwnServer() as second, OwnServer() as third:
        servers = first, second, third
        for server in servers:
            server.serve()
        assert len({server.url() for server in servers}) == len(servers)


def test_a_damaged_database_is_reported_in_a_line(home) -> None:
    home.mkdir(parents=True)
    (home / "prefect.db").write_bytes(b"12:00:00.112 | ERROR | no database" * 200)
    with (
        OwnServer() as server,
        pytest.raises(StorageError, match=r"file is not a database.*set PREFECT_HOME") as raised,
    ):
        server.url()
    assert "\n" not in str(raised.value)
