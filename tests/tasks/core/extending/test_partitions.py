"""An extension of two stages in partitions, as hosts take them: by the plan that they share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from tasks.core.cluster.shared_plan import partition_plan, put_shared_plan, read_plan
from tasks.core.extending.publish import publish_extension
from tasks.core.planning.run_plan import RunPlan
from tasks.core.shuffle.arrange import arrange
from tasks.core.storage import Storage
from tests.tasks.core.build_dataset import gather_all, tokenize_all
from tests.tasks.core.extending.extended import extended, planned
from tests.tasks.core.extending.test_shuffled_deduplicated import (  # noqa: F401
    files_of,
    kind,
    lines,
    old,
)


def partitions(plan: RunPlan, storage: Storage, folder: Path) -> Iterator[RunPlan]:
    """The plan of each of two hosts."""
    put_shared_plan(plan, storage, folder.name, 2)
    shared = read_plan(storage, folder.name)
    for number, parts in enumerate(shared.partitions):
        scratch = folder / str(number)
        scratch.mkdir(parents=True)
        yield partition_plan(shared, plan.config, storage, parts, scratch, resumed=False)


def test_the_same_bytes(old: Path, lines: Path, tmp_path: Path) -> None:  # noqa: F811
    new = [lines / "2.jsonl", lines / "3.jsonl"]
    twin = Path(shutil.copytree(old, tmp_path / "twin"))
    extended(twin, *new)
    plan, storage = planned(old, *new)
    for own in partitions(plan, storage, tmp_path / "scatter"):
        tokenize_all(own, storage)
    plan = arrange(plan, storage)
    for own in partitions(plan, storage, tmp_path / "gather"):
        gather_all(own, storage)
    assert plan.parent is not None
    publish_extension(plan, plan.parent, storage)
    storage.close()
    assert files_of(old) == files_of(twin)
