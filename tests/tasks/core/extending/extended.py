"""Extensions made without Prefect."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.extending.config import ExtendConfig
from tasks.core.extending.publish import publish_extension
from tasks.core.planning.look import look, take_up
from tasks.core.planning.plan import remove_scratch
from tasks.core.planning.run_plan import RunPlan
from tasks.core.planning.sources import check_sources
from tasks.core.shuffle.arrange import arrange
from tasks.core.storage import Storage, open_storage
from tests.tasks.core.build_dataset import gather_all, tokenize_all


def write_source(file: Path, texts: Sequence[str | None]) -> Path:
    """A source file of some documents."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), file, row_group_size=7)
    return file


def planned(dataset: Path | str, *sources: Path, **options: Any) -> tuple[RunPlan, Storage]:
    """The plan of an extension, which has taken the dataset."""
    config = ExtendConfig(
        dataset=str(dataset), sources=tuple(map(str, sources)),
        **{"workers": 1, "engine": "reference", **options},
    ).run  # fmt: skip
    storage = open_storage(str(dataset))
    files = check_sources(config)
    found = look(config, storage, files)
    storage.create()
    return take_up(found, storage, files), storage


def extended(dataset: Path, *sources: Path, **options: Any) -> RunPlan:
    """Extend a dataset, to the end."""
    plan, storage = planned(dataset, *sources, **options)
    if not plan.published:
        finish(plan, storage)
    return plan


def finish(plan: RunPlan, storage: Storage) -> None:
    """Do what an extension has to do, and publish it."""
    tokenize_all(plan, storage)
    if plan.stage == "scatter":
        plan = arrange(plan, storage)
        gather_all(plan, storage)
    assert plan.parent is not None
    publish_extension(plan, plan.parent, storage)
    storage.close()
    remove_scratch(plan)
