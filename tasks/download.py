"""Bring a remote source file within reach of the workers."""

from pathlib import Path

from prefect import task

from tasks.core.planning.part import Part
from tasks.core.workers.jobs import FetchJob
from tasks.running.retrying import OURS, retry_pauses
from tasks.running.run import Run


@task(
    name="download",
    task_run_name="download {part}",
    retries=4,
    retry_delay_seconds=retry_pauses,
    **OURS,
)
def download(run: Run, part: Part) -> Path:
    """The path of the file's bytes on this machine.

    Raises:
        ShardmillError: whatever the worker met that fetched it.
    """
    source = part.source
    run.room.take(part.number, source.size)
    try:
        fetched = run.movers.run(
            FetchJob(
                source=source,
                folder=str(run.plan.downloads),
                options=run.plan.spec.read_options,
            )
        )
    except BaseException:
        run.room.give_back(part.number)
        raise
    run.fetched(part, fetched)
    return Path(fetched.path)
