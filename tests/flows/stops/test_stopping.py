"""Ctrl+C, SIGTERM, cancel, kill -9, a worker's death: what ends, what stays, what is recorded."""

import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.command_line import (
    CommandLine,
    assert_same_dataset,
    ended_as,
    is_alive,
    kill_group,
    processes_below,
    succeeded,
    wait_for,
    workers_of,
)
from tests.servers.prefect.server import ask, runs_named
from tests.warm import WARM

# Makes the terminal on standard input the controlling one, as a shell's is.
CONTROLLED = """
import faulthandler, fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
faulthandler.enable(open("{stacks}", "w"))
from flows.cli import main
main()
"""
END_SECONDS = 120.0  # two on an idle machine


def start_and_wait_for_work(
    command: CommandLine, output: Path
) -> tuple["subprocess.Popen[str]", list[psutil.Process]]:
    """Start a run, wait until both workers have a file in hand, and return it and its processes."""
    run = command.start(*command.shard_arguments(output, engine="reference"))
    scratch = output.parent / f".{output.name}.scratch"
    try:
        wait_for(lambda: len(list(scratch.glob("*/documents/*.parquet"))) >= 2)
        assert len(workers_of(run.pid)) == 2
        return run, processes_below(psutil.Process(run.pid))
    except BaseException:
        kill_group(run)
        raise


def flow_run(api_url: str, output: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the latest flow run on this output, once it runs, and its task runs.

    Workers start before Prefect knows of the run.
    """
    found: list[dict[str, Any]] = []

    def started() -> bool:
        found[:] = runs_named(api_url, f"shard {output}")
        return bool(found) and found[0]["state_type"] not in {"SCHEDULED", "PENDING"}

    wait_for(started)
    of_run = {"id": {"any_": [found[0]["id"]]}}
    return found[0], ask("POST", f"{api_url}/task_runs/filter", flow_runs=of_run)


def flow_run_at_work(api_url: str, output: Path) -> dict[str, Any]:
    """Return the latest flow run on this output, once it has tasks.

    Prefect calls a run running before the flow's first line; a stop in between makes it crashed.
    """
    wait_for(lambda: flow_run(api_url, output)[1])
    return flow_run(api_url, output)[0]


def cancel_in_the_dashboard(run: "subprocess.Popen[str]", flow_run_url: str) -> None:
    """Send the request that the button and `prefect flow-run cancel` send."""
    state = {"type": "CANCELLING", "name": "Cancelling"}
    ask("POST", f"{flow_run_url}/set_state", state=state, force=True)


def press_ctrl_c(run: "subprocess.Popen[str]", flow_run_url: str) -> None:
    """Send SIGINT to the whole group, as a terminal does."""
    os.killpg(run.pid, signal.SIGINT)


@pytest.mark.parametrize(("stop", "code"), [(press_ctrl_c, 130), (cancel_in_the_dashboard, 143)])
def test_a_stop_ends_the_run_and_all_its_processes(
    slow,
    api_url,
    tmp_path,
    stop,
    code,
) -> None:
    output = tmp_path / "out"
    run, processes = start_and_wait_for_work(slow, output)
    for worker in workers_of(run.pid):
        worker.suspend()  # so that it is not done before the stop
    found = flow_run_at_work(api_url, output)
    began = time.monotonic()
    stop(run, f"{api_url}/flow_runs/{found['id']}")
    _, stderr = ended_as(run, code, seconds=END_SECONDS)
    assert "Run the same command again" in stderr
    assert "Traceback" not in stderr
    assert not [process for process in processes if is_alive(process)]
    assert time.monotonic() - began < END_SECONDS
    assert not (output / "manifest.json").exists()

    assert flow_run(api_url, output)[0]["state_type"] == "CANCELLED"
    ended = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
    wait_for(lambda: {task["state_type"] for task in flow_run(api_url, output)[1]} <= ended)


def test_a_terminal_that_is_closed_ends_the_run(slow, api_url, tmp_path) -> None:
    output = tmp_path / "out"
    stacks = tmp_path / "stacks"
    master, terminal = pty.openpty()
    run = subprocess.Popen(
        [
            *(sys.executable, "-P", "-c", CONTROLLED.format(stacks=stacks)),
            *map(str, slow.shard_arguments(output, engine="reference")),
        ],
        env=slow.env,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    scratch = tmp_path / ".out.scratch"
    seen = b""
    while not list(scratch.glob("*/documents/*.parquet")):
        assert run.poll() is None, seen.decode()
        if select.select([master], [], [], 0.1)[0]:
            seen += os.read(master, 65536)  # the run blocks if nobody reads its output
    for worker in workers_of(run.pid):
        worker.suspend()  # so that it is not done before Prefect knows of the run
    flow_run_at_work(api_url, output)
    processes = psutil.Process(run.pid).children(recursive=True)
    assert processes
    os.close(master)  # the kernel hangs up
    try:
        run.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGABRT)
        run.wait()
    assert run.returncode == 129, stacks.read_text()
    assert not [process for process in processes if is_alive(process)]
    assert flow_run(api_url, output)[0]["state_type"] == "CANCELLED"


def test_a_cancel_that_comes_too_late_is_recorded(served, dataset, api_url, tmp_path) -> None:
    output = tmp_path / "out"
    run = served.start(*served.shard_arguments(output))
    wait_for((output / "parts").exists)  # only a moment's work is left
    found, _ = flow_run(api_url, output)
    cancel_in_the_dashboard(run, f"{api_url}/flow_runs/{found['id']}")
    _, stderr = ended_as(run, 143, seconds=END_SECONDS)
    assert "Traceback" not in stderr
    assert flow_run(api_url, output)[0]["state_type"] == "CANCELLED"
    succeeded(served.shard(output))
    assert_same_dataset(dataset, output)


# All processes of the run that is killed are started like a user's.
@pytest.mark.parametrize(("end", "warm"), [(signal.SIGKILL, False), (signal.SIGTERM, WARM)])
def test_a_run_with_a_server_of_its_own_leaves_no_process(
    embedded, slow, tmp_path, end, warm
) -> None:
    alone = replace(slow, env=embedded.env, warm=warm)
    output = tmp_path / "out"
    run, processes = start_and_wait_for_work(alone, output)
    assert len(processes) >= 3  # two workers and the server
    os.killpg(run.pid, end)
    run.communicate()
    wait_for(lambda: not [p for p in processes if is_alive(p)], seconds=END_SECONDS)
    with closing(sqlite3.connect(Path(embedded.env["PREFECT_HOME"]) / "prefect.db")) as records:
        ended = records.execute(
            "SELECT state_type FROM flow_run WHERE name = ?", (f"shard {output}",)
        ).fetchall()
    assert ended == [("RUNNING" if end == signal.SIGKILL else "CANCELLED",)]


def test_a_killed_worker_costs_one_retry_of_its_file(slow, undisturbed, api_url, tmp_path) -> None:
    output = tmp_path / "out"
    run, _ = start_and_wait_for_work(slow, output)
    workers_of(run.pid)[0].kill()
    stdout, _ = ended_as(run)
    assert re.search(r"^parts +4$", stdout, re.MULTILINE)
    assert_same_dataset(undisturbed, output)

    def attempts() -> Counter[int]:
        return Counter(task["run_count"] for task in flow_run(api_url, output)[1])

    wait_for(lambda: attempts() == {1: 2 * 4, 2: 1})  # two steps of four files, and publish
