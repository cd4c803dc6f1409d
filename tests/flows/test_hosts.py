"""A run on several hosts: a real server, real workers that take partitions, come, die and go."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import CommandLine, assert_same_dataset, wait_for
from tests.servers.prefect_worker import FINAL, PARENTS, Cluster, cluster

END_SECONDS = 60.0


@pytest.fixture(scope="module")
def hosts(
    api_url: str, served: CommandLine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two hosts, and one for the parent runs."""
    with cluster(api_url, served.env, tmp_path_factory.mktemp("hosts")) as made:
        made.start("planner", pool=PARENTS)
        made.start("one")
        made.start("two")
        yield made


@pytest.fixture
def parameters(served: CommandLine, tmp_path: Path) -> dict[str, Any]:
    """Of a run on the hosts: five small files."""
    return {
        "config": {
            "sources": [str(served.sources)],
            "output": str(tmp_path / "out"),
            "tokenizer": str(served.tokenizer),
            "pattern": "gpt2",
            "sequence_length": 128,
            "shard_size": "16KiB",
            "holdout_fraction": 0.1,
            "workers": 1,  # so that it is enough to freeze one
            "executor": "prefect://shard-partition/hosts",
            "partitions": 3,
        }
    }


def test_stopped_again_and_again(
    hosts: Cluster,
    served: CommandLine,
    parameters: dict[str, Any],
    dataset: Path,
    tmp_path: Path,
) -> None:
    """Ctrl+C on who submitted it, kill -9 of the parent run, kill -9 of a host; then to the end."""
    output = tmp_path / "out"
    settings = [f"{name}={value}" for name, value in parameters["config"].items()]

    submitted = CommandLine(hosts.env, served.tokenizer, served.sources).start(
        "submit", "demo", *settings
    )
    hosts.frozen()
    os.killpg(submitted.pid, signal.SIGINT)
    began = time.monotonic()
    wait_for(hosts.no_work_left, seconds=END_SECONDS)
    stdout, stderr = submitted.communicate(timeout=60)
    assert submitted.returncode == 130, stdout + stderr
    assert "The run ended as Cancelled" in stdout, stdout + stderr
    assert time.monotonic() - began < END_SECONDS
    assert not (output / "manifest.json").exists()
    assert list((output / "runs").iterdir()) == [output / "runs" / ".lock"]

    run = hosts.run("shard-dataset/demo", parameters)
    hosts.frozen()
    _, *parent = hosts.processes("planner")
    for process in parent:
        process.kill()
    wait_for(hosts.no_work_left, seconds=END_SECONDS)
    wait_for(lambda: {one["state_type"] for one in hosts.partitions(run)} <= FINAL)
    assert not (output / "manifest.json").exists()
    kept = {file.name for file in (output / "parts").glob("*")}

    run = hosts.run("shard-dataset/demo", parameters)
    hosts.kill(hosts.frozen()[0])
    state = hosts.wait(run)
    assert state["type"] == "COMPLETED", state
    assert_same_dataset(dataset, output)
    assert kept <= {file.name for file in (output / "parts").glob("*")}
    states = [one["state_type"] for one in hosts.partitions(run)]
    assert "CRASHED" in states  # the one whose host was killed; it was sent again
    assert states.count("COMPLETED") == len(states) - states.count("CRASHED")
    left = [path for path in (output / "runs").iterdir() if path.suffix not in {".json", ".html"}]
    assert left == [output / "runs" / ".lock"]  # and reports
