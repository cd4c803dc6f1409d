"""Ctrl+C, SIGTERM, kill -9 and a worker's death: what ends, what stays, and what is recorded."""

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.command_line import (
    CommandLine,
    assert_same_dataset,
    is_alive,
    wait_for,
    workers_of,
)

END_SECONDS = 10.0


def start_and_wait_for_work(
    command: CommandLine, output: Path
) -> tuple["subprocess.Popen[str]", list[psutil.Process]]:
    """Start a run; come back when both workers have a file in hand. Its processes are returned."""
    run = command.start(*command.shard_arguments(output, engine="reference"))
    scratch = output.parent / f".{output.name}.scratch"
    try:
        wait_for(lambda: len(list(scratch.glob("*/documents/*.parquet"))) >= 2)
        assert len(workers_of(run.pid)) == 2
        return run, psutil.Process(run.pid).children(recursive=True)
    except BaseException:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        raise


def flow_run(api_url: str, output: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The latest flow run on this output, and its task runs."""
    name = {"flow_runs": {"name": {"any_": [f"shard {output}"]}}, "sort": "START_TIME_DESC"}
    run = httpx.post(f"{api_url}/flow_runs/filter", json=name).json()[0]
    of_run = {"flow_runs": {"id": {"any_": [run["id"]]}}}
    return run, httpx.post(f"{api_url}/task_runs/filter", json=of_run).json()


@pytest.mark.parametrize(
    ("sent", "to_group", "code"),
    [
        (signal.SIGINT, True, 130),  # what a terminal does on Ctrl+C
        (signal.SIGTERM, False, 143),
    ],
)
def test_a_signal_ends_the_run_and_all_its_processes(
    slow: CommandLine,
    undisturbed: Path,
    api_url: str,
    tmp_path: Path,
    sent: signal.Signals,
    to_group: bool,
    code: int,
) -> None:
    output = tmp_path / "out"
    run, processes = start_and_wait_for_work(slow, output)
    began = time.monotonic()
    (os.killpg if to_group else os.kill)(run.pid, sent)
    _, stderr = run.communicate(timeout=END_SECONDS)
    assert run.returncode == code, stderr
    assert "Run the same command again" in stderr
    assert "Traceback" not in stderr
    assert not [process for process in processes if is_alive(process)]
    assert time.monotonic() - began < END_SECONDS
    assert not (output / "manifest.json").exists()

    recorded, _ = flow_run(api_url, output)
    assert recorded["state_type"] in {"CRASHED", "CANCELLED"}
    ended = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
    wait_for(lambda: {task["state_type"] for task in flow_run(api_url, output)[1]} <= ended)

    assert slow.shard(output, engine="reference").returncode == 0
    assert_same_dataset(undisturbed, output)


def test_kill_9_of_the_parent_leaves_no_orphan(
    embedded: CommandLine, slow: CommandLine, tmp_path: Path
) -> None:
    alone = CommandLine(embedded.env, slow.tokenizer, slow.sources)
    run, processes = start_and_wait_for_work(alone, tmp_path / "out")
    assert len(processes) >= 3  # two workers and Prefect's embedded API
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    wait_for(lambda: not [p for p in processes if is_alive(p)], seconds=END_SECONDS)


def test_a_killed_worker_costs_one_retry_of_its_file(
    slow: CommandLine, undisturbed: Path, api_url: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    run, _ = start_and_wait_for_work(slow, output)
    workers_of(run.pid)[0].kill()
    stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == 0, stderr
    assert "4 done" in stdout
    assert_same_dataset(undisturbed, output)

    def attempts() -> Counter[int]:
        return Counter(task["run_count"] for task in flow_run(api_url, output)[1])

    wait_for(lambda: attempts() == {1: 2 * 4, 2: 1})  # two steps of four files, and publish
