"""The API that a run uses: its own behind a proxy, a server that does not exist or is busy."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.prefect_api import connection
from flows.prefect_api.connection import require_server
from flows.running import set_environment
from tests.command_line import (
    ended_as,
    refused,
    succeeded,
    workers_of,
)
from tests.servers.prefect.server import free_port


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "127.0.0.1,localhost"),
        ("corp.example", "corp.example,127.0.0.1,localhost"),
        ("127.0.0.1,corp.example", "127.0.0.1,corp.example,localhost"),
    ],
)
def test_loopback_needs_no_proxy(monkeypatch, before, after) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, before)
    set_environment()
    assert (os.environ["NO_PROXY"], os.environ["no_proxy"]) == (after, after)


def test_a_server_that_does_not_exist_is_reported_before_anything_is_made(
    embedded, dataset, tmp_path
) -> None:
    nowhere = embedded.where(PREFECT_API_URL=f"http://127.0.0.1:{free_port()}/api")
    output = tmp_path / "deep/out"
    ended = refused(
        nowhere.shard(output),
        nowhere.env["PREFECT_API_URL"],
        "prefect config unset PREFECT_API_URL",
        code=1,
    )
    assert ended.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
    ended = succeeded(nowhere.shard(dataset))
    assert "nothing is left to do" in ended.stderr


def test_a_server_under_load_is_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes requests, answers late
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/api"

        def answer_all_but_the_first() -> None:
            busy, _ = listening.accept()
            answering, _ = listening.accept()
            with answering, busy:
                answering.recv(65_536)
                answering.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")

        thread = threading.Thread(target=answer_all_but_the_first)
        thread.start()
        began = time.monotonic()
        with temporary_settings({PREFECT_API_URL: url}):
            require_server()
        assert time.monotonic() - began > 0.9
        thread.join()


def test_ctrl_c_amid_the_imports_is_no_traceback(environment) -> None:
    run = subprocess.Popen(
        [sys.executable, "-P", "-X", "importtime", "-m", "flows.cli", "shard", "nothing"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    for line in run.stderr:
        if line.endswith(" pydantic.version\n"):
            break
    run.send_signal(signal.SIGINT)
    _, stderr = ended_as(run, 130)
    assert "Traceback" not in stderr
    assert "\nshardmill: stopped." in stderr
    assert not workers_of(run.pid)
