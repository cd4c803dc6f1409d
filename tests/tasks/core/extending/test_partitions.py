"""An extension of two phases in partitions, as hosts take them: by the plan that they share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from streaming_ext.store import Storage
from tasks.core.cluster import partition_plan, put_shared_plan, read_plan
from tasks.core.config import ShardConfig
from tasks.core.shard.shard_build import ShardBuild
from tests.tasks.core.extending.extended import extended, planned
from tests.tasks.core.extending.test_shuffled_deduplicated import (  # noqa: F401
    files_of,
    kind,
    lines,
    old,
    originals,
)
from tests.tasks.core.running import do_parts, publish, second_phase


def partitions(plan: ShardBuild, storage: Storage, folder: Path) -> Iterator[ShardBuild]:
    """The plan of each of two hosts."""
    put_shared_plan(plan, storage, folder.name, 2)
    shared = read_plan(storage, folder.name)
    for number, parts in enumerate(shared.partitions):
        scratch = folder / str(number)
        scratch.mkdir(parents=True)
        config = ShardConfig.model_validate(shared.config)
        yield partition_plan(shared, config, storage, parts, scratch)


def test_the_same_bytes(old: Path, lines: Path, tmp_path: Path) -> None:  # noqa: F811
    new = [lines / "2.jsonl", lines / "3.jsonl"]
    twin = Path(shutil.copytree(old, tmp_path / "twin"))
    extended(twin, *new)
    plan, storage = planned(old, *new)
    for own in partitions(plan, storage, tmp_path / "sort"):
        do_parts(own, storage)
    plan = second_phase(plan, storage)
    for own in partitions(plan, storage, tmp_path / "merge"):
        do_parts(own, storage)
    assert plan.base is not None
    publish(plan, storage)
    storage.close()
    assert files_of(old) == files_of(twin)
