"""Files that a store confirmed and then lost, before publishing or from a published dataset."""

from itertools import product

import pytest

from streaming_ext.base.errors import CorruptDatasetError, DatasetError, StorageError
from streaming_ext.store import open_storage
from tests.tasks.core.planning.conftest import Output
from tests.tasks.core.running import publish

SHARD = "train/00001/shard.00000.mds.zstd"
RECORD = "parts/00001.json"


@pytest.fixture
def kept_by(request) -> str:
    return str(request.param)


def each_of(*names: str) -> pytest.MarkDecorator:
    """Parametrize a test by files lost or cut on a disk, and one lost in a bucket."""
    cases = [*product(["disk", "disk, cut"], names), ("s3", SHARD)]
    return pytest.mark.parametrize(("kept_by", "name"), cases, indirect=["kept_by"])


@pytest.fixture
def output(request, kept_by, config) -> Output:
    """An output of two parts, in a folder or in a bucket."""
    url = f"s3://{request.getfixturevalue('bucket')}/out" if kept_by == "s3" else config.output
    storage = open_storage(url)
    storage.create()
    return Output(config.model_copy(update={"output": url, "max_files": 2}), storage)


def lose(output: Output, kept_by: str, path: str) -> None:
    """Remove a file, or cut it short."""
    data = output.storage.read(path)
    output.storage.remove(path)
    if "cut" in kept_by:
        output.storage.put(path, data[:-1])


def require_record_refused(output: Output, kept_by: str, path: str) -> None:
    """Check that a record that is cut short counts as damage; a missing one does not."""
    if (path, kept_by) == (RECORD, "disk, cut"):
        with pytest.raises(CorruptDatasetError, match="no valid part record"):
            output.plan()
        output.storage.remove(path)


@each_of(SHARD, "documents/00001.parquet", RECORD)
def test_a_file_of_a_part_while_the_run_continues(output, kept_by, name) -> None:
    """The store answered 200 to its PUT; the run publishes nothing, and the next run repairs it."""
    plan = output.do([0, 1])
    before = output.content()
    lose(output, kept_by, name)
    with pytest.raises((StorageError, DatasetError), match="00001|\\[1\\]"):
        publish(plan, output.storage)
    assert "manifest.json" not in output.storage.list()
    require_record_refused(output, kept_by, name)
    assert output.plan().todo == (1,)
    assert RECORD not in output.storage.list()
    output.complete()
    assert output.content().items() >= before.items()


@each_of(SHARD, RECORD, "train/index.json", "tokenizer/tokenizer_spec.json")
def test_a_file_of_a_published_dataset(output, kept_by, name) -> None:
    """The same command makes the part again, with the same bytes, and publishes again."""
    output.complete()
    assert output.plan().published
    before = output.content()
    lose(output, kept_by, name)
    require_record_refused(output, kept_by, name)
    plan = output.plan()
    assert (plan.published, plan.todo) == (False, (1,) if "00001" in name else ())
    output.complete()
    assert output.content() == before
    assert output.plan().published
