"""Copies and merges made without Prefect, as workers make them."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from streaming_ext.store import open_storage
from tasks.core.derive.config import CopyConfig, MergeConfig
from tasks.core.derive.move import MoveBuild, plan_copy, plan_merge
from tests.tasks.core import running

Location = Path | str


def copied(original: Location, output: Location) -> MoveBuild:
    """Copy to the end; returns what there was to do."""
    config = CopyConfig(dataset=str(original), output=str(output))
    plan = plan_copy(config, open_storage(config.output))
    finish(plan)
    return plan


def merged(datasets: Iterable[Location], output: Location, *, repeats: bool = False) -> MoveBuild:
    """Merge to the end; returns what there was to do."""
    config = MergeConfig(datasets=tuple(map(str, datasets)), output=str(output), repeats=repeats)
    plan = plan_merge(config, open_storage(config.output))
    finish(plan)
    return plan


def begin(plan: MoveBuild, parts: Iterable[int] | None = None) -> None:
    """Do some parts, as a run does that is killed then; all that are missing unless given."""
    output = open_storage(plan.config.output)
    running.do_parts(running.begun(plan, output), output, parts)


def finish(plan: MoveBuild) -> None:
    """Do all that is missing, in an order of its own, and publish."""
    if not plan.published:
        output = open_storage(plan.config.output)
        plan = running.begun(plan, output)
        running.do_parts(plan, output, reversed(plan.todo))
        running.finish(replace(plan, todo=()), output)
