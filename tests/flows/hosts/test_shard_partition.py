"""A host that cannot work for a run: the flow of one partition alone."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.command_line import wait_for
from tests.servers.prefect.server import runs_named

STAYS_SECONDS = 2.0


def _become_host(api_url: str) -> None:
    os.environ["PREFECT_API_URL"] = api_url
    os.environ["PREFECT__RUNTIME__DEPLOYMENT__ID"] = "some deployment"
    from flows import shard_partition

    shard_partition.REFUSE_SECONDS = STAYS_SECONDS


def work(output: Path) -> str:
    """Run the flow as a worker does, and return the name of its final state."""
    from flows.shard_partition import shard_partition

    state = shard_partition(  # type: ignore[call-overload]
        output=str(output), run="run", partition=0, attempt=1, return_state=True
    )
    return state.name


def test_a_host_that_sees_another_disk_refuses_and_takes_no_other(api_url, tmp_path) -> None:
    """Prefect knows at once, and the process stays for a while.

    The process is a new one: a process that ran a flow must not be forked, as DataLoaders do.
    """
    output = tmp_path / "out"
    (output / ".incoming").mkdir(parents=True)  # an earlier dataset left this folder

    def runs() -> list[dict[str, Any]]:
        return runs_named(api_url, f"partition 0 of {output}")

    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_become_host, initargs=(api_url,)) as host:
        working = host.submit(work, output)
        wait_for(lambda: [one["state_name"] for one in runs()] == ["Refused"])
        assert not working.done()
        assert working.result(60) == "Refused"
    (run,) = runs()
    assert run["state_type"] == "FAILED"
    assert "holds nothing of this run" in run["state"]["message"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
