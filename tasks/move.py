"""Put files that go together on an output, in a worker process: of a copy, of a merge."""

from prefect import task

from streaming_ext.text.parts.part import Part
from tasks.core.moving.plan import MovePlan
from tasks.core.reporting.report import PartTimes
from tasks.running.made_run import MadeRun
from tasks.running.retrying import OURS, retry_pauses


def _move(run: MadeRun[MovePlan], part: Part) -> PartTimes:
    """Put the files of one part in place, its record last.

    Raises:
        ShardmillError: whatever the worker met.
    """
    return run.do(part)


copy = task(
    name="copy",
    task_run_name="copy {part}",
    retries=3,
    retry_delay_seconds=retry_pauses,
    **OURS,
)(_move)
merge = task(
    name="merge",
    task_run_name="merge {part}",
    retries=3,
    retry_delay_seconds=retry_pauses,
    **OURS,
)(_move)
