"""Make the recorded parts one dataset."""

from prefect import task

from streaming_ext.manifest import Manifest
from tasks.core import publish as core
from tasks.retrying import OURS, retry_pauses
from tasks.run import Planned


@task(
    name="publish",
    task_run_name="publish",
    retries=3,
    retry_delay_seconds=retry_pauses,
    **OURS,
)
def publish(run: Planned) -> Manifest:
    """Merge the indexes and write the manifest, last of all."""
    run.storage.require_held()
    return core.publish(run.plan, run.storage)
