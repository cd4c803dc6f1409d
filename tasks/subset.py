"""Write a part of a subset, in a worker process."""

from prefect import task

from streaming_ext.text.parts.part import Part
from tasks.core.reporting.report import PartTimes
from tasks.core.subsets.plan import SubsetPlan
from tasks.running.made_run import MadeRun
from tasks.running.retrying import OURS, retry_pauses


@task(
    name="subset",
    task_run_name="subset {part}",
    retries=3,
    retry_delay_seconds=retry_pauses,
    **OURS,
)
def subset(run: MadeRun[SubsetPlan], part: Part) -> PartTimes:
    """Write the part's files and its record.

    Raises:
        ShardmillError: whatever the worker met.
    """
    return run.do(part)
