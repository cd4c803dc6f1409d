"""Put a part of the second stage together from runs, on scratch, in a worker process."""

from prefect import task

from streaming_ext.errors import DatasetError
from streaming_ext.text.parts.part import Part
from tasks.core.deduplicate.kept_order import KeptOrderJob
from tasks.core.shuffle.gather import MergeJob
from tasks.core.workers.jobs import TokenizedPart
from tasks.running.retrying import OURS, retry_pauses
from tasks.running.run import Run


@task(
    name="gather",
    task_run_name="gather {part}",
    retries=3,
    retry_delay_seconds=retry_pauses,
    **OURS,
)
def gather(run: Run, part: Part) -> TokenizedPart:
    """Merge what belongs to a part, but for copies; the shards stay on scratch, counts come back.

    Raises:
        ShardmillError: whatever the worker met.
    """
    plan, gathering = run.plan, run.plan.gathering
    if gathering is None or (plan.spec.shuffle is not None and gathering.index is None):
        raise DatasetError(f"{run.storage}: part {part.number:05} is missing, and so are its runs.")
    run.require_going()
    kind = KeptOrderJob if plan.spec.shuffle is None else MergeJob
    gathered = run.pool.run(
        kind(
            part=part,
            parts=len(plan.parts) - plan.first_part,
            first=plan.first_part,
            scratch=str(plan.part_scratch(part.number)),
            output=str(run.storage),
            spec=plan.spec,
            source=gathering.source,
            index=gathering.index,
            drops=gathering.drops,
        ),
        on_progress=run.follow(part),
    )
    run.follow(part)(gathered.progress)
    return gathered
