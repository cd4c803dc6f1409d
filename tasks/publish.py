"""Make the recorded parts one dataset."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from streaming_ext.manifest import Manifest
from tasks.core import publish as core
from tasks.run import Planned, is_transient, retry_pauses


@task(
    name="publish",
    task_run_name="publish",
    retries=3,
    retry_delay_seconds=retry_pauses,
    retry_condition_fn=is_transient,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def publish(run: Planned) -> Manifest:
    """Merge the indexes and write the manifest, last of all."""
    run.storage.require_held()
    return core.publish(run.plan, run.storage)
