"""Copies and merges made without Prefect, as workers make them."""

from collections.abc import Iterable
from pathlib import Path

from tasks.core.moving.config import CopyConfig, MergeConfig
from tasks.core.moving.move import move_unit
from tasks.core.moving.plan import MovePlan, plan_copy, plan_merge, prepare, publish
from tasks.core.storage import open_storage
from tasks.core.storage.scratch import drop_scratch

Place = Path | str


def copied(original: Place, output: Place) -> MovePlan:
    """Copy to the end; returns what there was to do."""
    config = CopyConfig(dataset=str(original), output=str(output))
    plan = plan_copy(config, open_storage(config.output))
    finish(plan)
    return plan


def merged(datasets: Iterable[Place], output: Place, *, repeats: bool = False) -> MovePlan:
    """Merge to the end; returns what there was to do."""
    config = MergeConfig(datasets=tuple(map(str, datasets)), output=str(output), repeats=repeats)
    plan = plan_merge(config, open_storage(config.output))
    finish(plan)
    return plan


def begin(plan: MovePlan, units: Iterable[int] | None = None) -> None:
    """Do some units, as a run does that is killed then; all that are missing unless given."""
    output = open_storage(plan.config.output)
    output.create()
    plan = prepare(plan, output)
    for number in reversed(plan.todo) if units is None else units:
        job = plan.job(number, output)
        move_unit(job.unit, output, Path(job.scratch), read=job.read)


def finish(plan: MovePlan) -> None:
    """Do all that is missing, in an order of its own, and publish."""
    if plan.published:
        return
    begin(plan)
    output = open_storage(plan.config.output)
    publish(plan, output)
    output.close()
    drop_scratch(plan.scratch)
