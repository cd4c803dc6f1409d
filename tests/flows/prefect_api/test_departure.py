"""A deployed run whose server is gone ends, and says so."""

import subprocess
import sys
import time

from tests.command_line import PATIENCE_SECONDS
from tests.servers.scripted import Answer, scripted

# A thread that lasts an hour stands for Prefect's threads, which keep the process alive.
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


def test_it_waits_for_a_server_that_answers_and_then_goes() -> None:
    with scripted(lambda *_: Answer()) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"{server.url}/api"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        time.sleep(1.5)
        assert process.poll() is None
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    words = f"the Prefect server at {server.url}/api went away; its pages do not show how the run"
    assert stderr.startswith(f"shardmill: {words} ended.")
    assert (process.returncode, stderr.count("\n")) == (1, 1)
