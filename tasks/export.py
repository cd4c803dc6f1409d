"""Write a part's share of an export, in a worker process."""

from prefect import task

from streaming_ext.text.parts.part import Part
from tasks.core.exports.plan import ExportPlan
from tasks.core.reporting.report import PartTimes
from tasks.running.made_run import MadeRun
from tasks.running.retrying import OURS, retry_pauses


@task(
    name="export",
    task_run_name="export {part}",
    retries=3,
    retry_delay_seconds=retry_pauses,
    **OURS,
)
def export(run: MadeRun[ExportPlan], part: Part) -> PartTimes:
    """Write the part's files and its record, or its ranges of files that it shares with others.

    Raises:
        ShardmillError: whatever the worker met.
    """
    return run.do(part)
