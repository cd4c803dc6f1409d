"""The flow `shard-partition`: one host's part of the work of a `shard-dataset` run."""

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.executors.look_ahead import MAX_THREADS
from flows.executors.parts import finished_parts
from flows.prefect_api.connection import leaving_without_a_server
from flows.terminal.visible import visible
from streaming_ext.errors import StoppedError
from streaming_ext.storage.secrets import holds_secret, require_no_secret
from tasks.core.linux import require_linux
from tasks.core.reporting.report import FailedFile
from tasks.core.storage import open_storage
from tasks.hosts.guest import CannotTakePartError
from tasks.hosts.partition_guest import PartitionGuest


def _run_name() -> str:
    given = flow_run.parameters
    output = "an output: refused" if holds_secret(given["output"]) else given["output"]
    return visible(f"partition {given['partition']} of {output}")


@flow(
    name="shard-partition",
    flow_run_name=_run_name,
    task_runner=ThreadPoolTaskRunner(max_workers=MAX_THREADS),  # type: ignore[arg-type]
    persist_result=False,
)
def shard_partition(output: str, run: str, partition: int, attempt: int) -> State:
    """Work on those parts that a `shard-dataset` run gave this run.

    It is started by that run, and of no use without it: it ends when that run does.

    Args:
        output: of the dataset.
        run: id of the flow run that planned, holds the output and publishes.
        partition: its number.
        attempt: how often it was sent.
    """
    require_no_secret(output, "output")
    require_linux()
    here = PartitionGuest(open_storage(output), run, partition, attempt)
    failed = parts = tokens = 0
    try:
        with (
            leaving_without_a_server(),
            here.giving_signs(),
            here.means(resumed=attempt > 1) as means,
        ):
            for result in finished_parts(means):
                here.progress.note(result)
                parts += 1
                if isinstance(result, FailedFile):
                    failed += 1
                else:
                    tokens += result.tokens
    except StoppedError as stop:
        return Cancelled(message=f"Stopped: {stop}")
    except CannotTakePartError as refusal:
        return here.refuse(refusal)
    if failed:
        return Failed(message=f"{failed} of {parts} parts failed; the parent run tells why.")
    return Completed(message=f"{parts} parts, {tokens:,} tokens")
