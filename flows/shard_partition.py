"""The flow `shard-partition`: the work of one host for a `shard-dataset` run."""

import os
import time
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.executors.here import MAX_THREADS, finished_parts
from flows.executors.on_hosts import REFUSED, partition_name
from flows.prefect_api.connection import leaving_without_a_server, one_attempt
from streaming_ext.base.errors import CannotTakePartError, StoppedError
from streaming_ext.store import open_storage
from streaming_ext.store.locations import require_no_secret
from tasks.core.hosts.guest import Guest
from tasks.core.linux import require_linux
from tasks.core.reporting.report import FailedFile

REFUSE_SECONDS = 60.0  # for which a host that cannot work takes no other partition


@flow(
    name="shard-partition",
    flow_run_name=lambda: partition_name(flow_run.parameters),
    task_runner=ThreadPoolTaskRunner(max_workers=MAX_THREADS),  # type: ignore[arg-type]
    persist_result=False,
)
def shard_partition(
    output: str, run: str, partition: int, attempt: int, workers: int | None = None
) -> State:
    """Make the parts of a partition for a `shard-dataset` run, the parent run, which starts this.

    This run ends when the parent run ends.

    Args:
        output: the path or URL of the dataset.
        run: the name of the parent run, which plans, locks the output and publishes.
        partition: the number of the partition.
        attempt: the number of the attempt.
        workers: a number of workers that overrides the configured one.
    """
    require_no_secret(output, "output")
    require_linux()
    try:
        with (
            leaving_without_a_server(),
            Guest(open_storage(output), run, partition, attempt, workers).working() as work,
        ):
            results = list(finished_parts(work))
    except StoppedError as stop:
        return Cancelled(message=f"Stopped: {stop}")
    except CannotTakePartError as refusal:
        return _refuse(str(refusal))
    tokens = [each.tokens for each in results if not isinstance(each, FailedFile)]
    if failed := len(results) - len(tokens):
        return Failed(message=f"{failed} of {len(results)} parts failed; see the parent run.")
    return Completed(message=f"{len(results)} parts, {sum(tokens):,} tokens")


def _refuse(message: str) -> State:
    """Refuse the partition, so that the parent run sends it to another host.

    A host that cannot work would take one partition after another, faster than hosts that can. So
    Prefect records this run as ended, but its process stays for a while. If the worker of the host
    takes one run at a time, it takes no other meanwhile.
    """
    if deployment.id:
        worker, deadline = os.getppid(), time.monotonic() + REFUSE_SECONDS
        refused: State = Failed(name=REFUSED, message=message)
        with one_attempt(), get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(str(flow_run.id)), refused, force=True)
        while time.monotonic() < deadline and os.getppid() == worker:
            time.sleep(1)
    # Prefect takes a state that the server knows for the state of a subflow, so return a new one.
    return Failed(name=REFUSED, message=message)
