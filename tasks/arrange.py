"""Between the stages of a run with a shuffle: from all runs to the parts of the second stage."""

from prefect import task

from tasks.core.planning.run_plan import RunPlan
from tasks.core.shuffle import arrange as core
from tasks.running.retrying import OURS, retry_pauses
from tasks.running.run import Planned


@task(
    name="arrange",
    task_run_name="arrange",
    retries=3,
    retry_delay_seconds=retry_pauses,
    **OURS,
)
def arrange(run: Planned) -> RunPlan:
    """Put the table of sources and the index of runs; returns the plan of the second stage."""
    run.storage.require_held()
    run.tell("arranging the second stage")
    return core.arrange(run.plan, run.storage)
