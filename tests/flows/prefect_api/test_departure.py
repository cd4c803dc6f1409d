"""A deployed run whose server is gone ends, and says so."""

import subprocess
import sys
import time

from tests.servers.prefect.server import free_port
from tests.servers.scripted import Answer, scripted

# Prefect's threads hold a process like this one: it would wait for an hour.
PROGRAM = """
import sys, threading, time
import prefect
from flows.prefect_api import connection
connection.GONE_SECONDS = 1.0
connection.LOOK_SECONDS = 0.1
connection.leave_if_gone(sys.argv[1])
print("waits", flush=True)
threading.Thread(target=time.sleep, args=(3600,)).start()
"""


def _waiting(url: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    return process


def test_it_does_not_wait_for_a_server_that_is_gone() -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    _, stderr = _waiting(url).communicate(timeout=240)
    words = f"the Prefect server at {url} went away; its pages do not show how the run ended."
    assert stderr.splitlines() == [f"shardmill: {words}"]


def test_it_waits_for_one_that_answers_and_then_goes() -> None:
    with scripted(lambda *_: Answer()) as server:
        process = _waiting(f"{server.url}/api")
        time.sleep(1.5)
        assert process.poll() is None
    assert process.wait(60) == 1
    process.communicate()
