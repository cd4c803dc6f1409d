"""Bring the pieces of a part within reach of the workers."""

from prefect import task

from streaming_ext.text.parts.part import Part
from tasks.core.workers.fetch_part import FetchJob
from tasks.running.retrying import OURS, retry_pauses
from tasks.running.run import Run


@task(
    name="download",
    task_run_name="download {part}",
    retries=4,
    retry_delay_seconds=retry_pauses,
    **OURS,
)
def download(run: Run, part: Part) -> int:
    """Bring a part's bytes to this machine; returns how many came. The run knows where they lie.

    Raises:
        ShardmillError: whatever the worker met that fetched it.
    """
    run.room.take(part.number, part.size)
    try:
        fetched = run.movers.run(
            FetchJob(
                part=part,
                folder=str(run.plan.downloads),
                options=run.plan.spec.read_options,
                check=run.plan.config.check_sources,
            )
        )
    except BaseException:
        run.room.give_back(part.number)
        raise
    run.fetched(part, fetched)
    return fetched.fetched_bytes
