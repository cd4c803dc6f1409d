"""Copies and merges made without Prefect, as workers make them."""

from collections.abc import Iterable
from pathlib import Path

from tasks.core.derive.config import CopyConfig, MergeConfig
from tasks.core.derive.move import MoveBuild, plan_copy, plan_merge
from tests.tasks.core import running

Location = Path | str


def copied(original: Location, output: Location) -> MoveBuild:
    """Make a complete copy, and return its plan."""
    return running.complete(plan_copy, CopyConfig(dataset=str(original), output=str(output)))


def merged(datasets: Iterable[Location], output: Location, *, repeats: bool = False) -> MoveBuild:
    """Make a complete merge, and return its plan."""
    names = tuple(map(str, datasets))
    config = MergeConfig(datasets=names, output=str(output), repeats=repeats)
    return running.complete(plan_merge, config)
