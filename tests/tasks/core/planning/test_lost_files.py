"""Files that a store said that it kept, and lost: before publishing and of a whole dataset."""

from collections.abc import Callable
from pathlib import Path

import pytest

from streaming_ext.base.errors import (
    CorruptDatasetError,
    DatasetError,
    StorageError,
)
from streaming_ext.format.layout import BUILD
from streaming_ext.store import Storage, open_storage
from tasks.core.config import ShardConfig
from tasks.core.shard.shard_build import ShardBuild
from tasks.core.shard.sources import check_sources
from tests.tasks.core.doubles import do
from tests.tasks.core.running import make_plan, publish

SHARD = "train/00001/shard.00000.mds.zstd"
Planned = Callable[[], ShardBuild]
Lose = Callable[[str], None]


@pytest.fixture(params=["disk", "disk, cut", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def output(request: pytest.FixtureRequest, place: str, tmp_path: Path) -> str:
    """A folder, or a prefix of a bucket."""
    if place == "s3":
        return f"s3://{request.getfixturevalue('bucket')}/out"
    return str(tmp_path / "out")


@pytest.fixture
def lose(storage: Storage, place: str) -> Lose:
    """Have a file gone or cut short."""

    def make(path: str) -> None:
        data = storage.read(path)
        storage.remove(path)
        if "cut" in place:
            storage.put(path, data[:-1])

    return make


@pytest.fixture
def storage(output: str) -> Storage:
    made = open_storage(output)
    made.create()
    return made


@pytest.fixture
def planned(config: ShardConfig, storage: Storage, output: str) -> Planned:
    asked = config.model_copy(update={"output": output, "max_files": 2})
    return lambda: make_plan(asked, storage, check_sources(asked))


def content(storage: Storage) -> dict[str, bytes]:
    return {path: storage.read(path) for path in storage.list() if path != BUILD}


def test_of_a_part_that_is_recorded(storage: Storage, planned: Planned, lose: Lose) -> None:
    """Lost before the next run: that one makes the part again."""
    do(planned(), storage, 0, 1)
    whole = storage.read(SHARD)
    lose(SHARD)
    plan = planned()
    assert plan.todo == (1,)
    assert "parts/00001.json" not in storage.list()
    do(plan, storage, *plan.todo)
    publish(plan, storage)
    assert storage.read(SHARD) == whole


@pytest.mark.parametrize("name", [SHARD, "documents/00001.parquet", "parts/00001.json"])
def test_of_a_part_while_the_run_goes_on(storage: Storage, planned: Planned, name: str) -> None:
    """The store answered 200 to its PUT; nothing is published, and the next run mends it."""
    plan = planned()
    do(plan, storage, *plan.todo)
    before = content(storage)
    storage.remove(name)
    with pytest.raises((StorageError, DatasetError), match="00001|\\[1\\]"):
        publish(plan, storage)
    assert "manifest.json" not in storage.list()
    plan = planned()
    assert plan.todo == (1,)
    do(plan, storage, *plan.todo)
    publish(plan, storage)
    after = content(storage)
    assert {path: after[path] for path in before} == before


@pytest.mark.parametrize("name", ["train/index.json", "tokenizer/tokenizer_spec.json"])
def test_an_index_or_a_file_of_the_tokenizer_of_a_published_dataset(
    storage: Storage, planned: Planned, lose: Lose, name: str
) -> None:
    """The same command again publishes it again."""
    plan = planned()
    do(plan, storage, *plan.todo)
    publish(plan, storage)
    assert planned().published
    before = content(storage)
    lose(name)
    plan = planned()
    assert (plan.published, plan.todo) == (False, ())
    publish(plan, storage)
    assert content(storage) == before
    assert planned().published


@pytest.mark.parametrize("name", [SHARD, "parts/00001.json"])
def test_a_shard_or_a_record_of_a_published_dataset(
    storage: Storage, planned: Planned, lose: Lose, name: str
) -> None:
    """The same command again makes the part again, with the same bytes."""
    plan = planned()
    do(plan, storage, *plan.todo)
    publish(plan, storage)
    before = content(storage)
    lose(name)
    if name in storage.list() and name.startswith("parts"):
        with pytest.raises(CorruptDatasetError, match="no valid part record"):
            planned()
        storage.remove(name)
    plan = planned()
    assert (plan.published, plan.todo) == (False, (1,))
    do(plan, storage, *plan.todo)
    publish(plan, storage)
    assert content(storage) == before
    assert planned().published
