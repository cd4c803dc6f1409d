"""Hosts that cannot work for a run, and runs that are over: the flow of a partition by itself."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.command_line import wait_for
from tests.servers.prefect.server import ask


@pytest.fixture(scope="module")
def host(api_url: str) -> Iterator[ProcessPoolExecutor]:
    """A process of its own: what ran a flow is not to be forked any more, as DataLoaders do."""
    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_become_host, initargs=(api_url,)) as process:
        yield process


def _become_host(api_url: str) -> None:
    os.environ["PREFECT_API_URL"] = api_url
    from tasks.hosts import partition_guest

    partition_guest.BEAT_SECONDS = 0.1


class ParentRun:
    """The record of a parent run in Prefect, and no more of it."""

    def __init__(self, api_url: str) -> None:
        self._api = api_url
        flow = ask("POST", f"{api_url}/flows/", name=f"parent-{uuid4()}")
        self.id = str(ask("POST", f"{api_url}/flow_runs/", flow_id=flow["id"])["id"])
        self.become("RUNNING")

    def become(self, kind: str) -> None:
        state = {"type": kind, "name": kind.title()}
        ask("POST", f"{self._api}/flow_runs/{self.id}/set_state", state=state, force=True)

    def partitions(self, output: Path) -> list[dict[str, Any]]:
        """The flow runs on an output, newest last."""
        name = {"name": {"any_": [f"partition 0 of {output}"]}}
        found = ask("POST", f"{self._api}/flow_runs/filter", flow_runs=name, sort="START_TIME_ASC")
        return list(found)


@pytest.fixture
def parent(api_url: str) -> ParentRun:
    return ParentRun(api_url)


def work(output: Path, run: str) -> tuple[str, str]:
    """Run the flow as a worker does; returns name and message of the state that it ends in."""
    from flows.shard_partition import shard_partition

    state = shard_partition(output=str(output), run=run, partition=0, attempt=1, return_state=True)  # type: ignore[call-overload]
    return state.name, state.message


@pytest.mark.parametrize("there", [False, True])
def test_a_host_that_sees_another_disk_refuses_and_takes_no_other(
    there: bool, parent: ParentRun, host: ProcessPoolExecutor, tmp_path: Path
) -> None:
    """Prefect knows at once, and the process stays until the run is over."""
    output = tmp_path / "out"
    if there:  # a dataset was made there before
        (output / ".incoming").mkdir(parents=True)
    working = host.submit(work, output, parent.id)
    wait_for(lambda: [one["state_name"] for one in parent.partitions(output)] == ["Refused"])
    assert not working.done()
    parent.become("COMPLETED")
    assert working.result(60)[0] == "Refused"
    (run,) = parent.partitions(output)
    assert run["state_type"] == "FAILED"
    assert "there is no such plan" in run["state"]["message"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_of_a_run_that_is_over_nothing_is_put(
    parent: ParentRun, host: ProcessPoolExecutor, tmp_path: Path
) -> None:
    (tmp_path / ".incoming").mkdir()
    parent.become("CANCELLED")
    name, message = host.submit(work, tmp_path, parent.id).result()
    assert name == "Cancelled"
    assert "the parent run is Cancelled" in message
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
