"""Make the recorded parts one output."""

from collections.abc import Callable
from typing import Any

from prefect import task

from streaming_ext.errors import TransientStorageError, one_line
from tasks.running.made_run import MadeRun
from tasks.running.retrying import OURS, retry_pauses


@task(
    name="publish",
    task_run_name="publish",
    retries=3,
    retry_delay_seconds=retry_pauses,
    **OURS,
)
def publish_made(run: MadeRun[Any], publish: Callable[..., object]) -> None:
    """Put in place what belongs to no part, and the manifest last of all."""
    run.storage.require_held()

    def tell(words: str) -> None:
        run.progress.enter(f"publishing, {words}")

    try:
        publish(run.plan, run.storage, tell=tell)
    except TransientStorageError as error:
        tell(f"waiting to try again: {one_line(error)}")
        raise
