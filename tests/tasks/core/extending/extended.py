"""Extensions made without Prefect."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streaming_ext.store import Storage, open_storage
from tasks.core.config import ExtendConfig
from tasks.core.engine.lifecycle import state_of
from tasks.core.shard.plan import plan_extend
from tasks.core.shard.shard_build import ShardBuild
from tests.tasks.core import doubles
from tests.tasks.core.running import begun, finish


def write_source(file: Path, texts: Sequence[str | None]) -> Path:
    """Write a source file of some documents."""
    doubles.write_source(file, texts, row_group_size=7)
    return file


def planned(dataset: Path | str, *sources: Path, **options: Any) -> tuple[ShardBuild, Storage]:
    """Plan an extension, which takes the dataset."""
    config = ExtendConfig(
        dataset=str(dataset),
        sources=tuple(map(str, sources)),
        **{"workers": 1, "engine": "reference", **options},
    )
    storage = open_storage(str(dataset))
    seen = state_of(storage)
    plan = plan_extend(config, storage)
    if state_of(storage) != seen:  # changed by a run that ended meanwhile
        plan = plan_extend(config, storage)
    return begun(plan, storage), storage


def extended(dataset: Path, *sources: Path, **options: Any) -> ShardBuild:
    """Extend a dataset to the end."""
    plan, storage = planned(dataset, *sources, **options)
    if not plan.published:
        finish(plan, storage)
    return plan
