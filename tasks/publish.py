"""Make the recorded parts one dataset."""

from prefect import task

from streaming_ext.dataset.manifest import Manifest
from streaming_ext.errors import TransientStorageError, one_line
from tasks.core.extending.publish import publish_extension
from tasks.core.outputs import publish as core
from tasks.running.retrying import OURS, retry_pauses
from tasks.running.run import Planned


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

    def tell(words: str) -> None:
        run.tell(f"publishing, {words}")

    try:
        if run.plan.parent is not None:
            return publish_extension(run.plan, run.plan.parent, run.storage, tell=tell)
        return core.publish(run.plan, run.storage, tell=tell)
    except TransientStorageError as error:
        tell(f"waiting to try again: {one_line(error)}")
        raise
