"""A refused run leaves what it refused as it was, and a run on a whole dataset writes nothing."""

from pathlib import Path

import pytest

from streaming_ext.base.errors import ConfigMismatchError, ShardmillError, UsageError
from streaming_ext.format.layout import BUILD
from streaming_ext.store import open_storage
from tasks.core.config import ShardConfig
from tasks.core.shard.plan import plan_shard
from tests.streaming_ext.build import Built, build, numbered_parts, some_documents
from tests.tasks.core.running import begun


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("look") / "data", numbered_parts(some_documents(30)))


def tree(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}


def asked(sources: Path, vocabulary: Path, output: object, **changes: object) -> ShardConfig:
    given = {
        "sources": (str(sources),), "output": str(output), "tokenizer": str(vocabulary),
        "pattern": "gpt2", "sequence_length": 8, "shard_size": 1024,
    }  # fmt: skip
    return ShardConfig.model_validate(given | changes)


def refuse(config: ShardConfig, error: type[ShardmillError], match: str) -> None:
    with pytest.raises(error, match=match):
        plan_shard(config, open_storage(config.output))


@pytest.mark.parametrize("below", ["train", "train/00000", "parts", "elsewhere/deep", "../data/x"])
def test_inside_a_dataset(sources: Path, vocabulary: Path, dataset: Built, below: str) -> None:
    before = tree(dataset.root)
    refuse(
        asked(sources, vocabulary, dataset.root / below), UsageError,
        f"lies inside the dataset {dataset.root},",
    )  # fmt: skip
    assert tree(dataset.root) == before


def test_inside_one_that_is_started(
    sources: Path, vocabulary: Path, dataset: Built, tmp_path: Path
) -> None:
    (tmp_path / "begun/runs").mkdir(parents=True)
    (tmp_path / "begun" / BUILD).write_text("{}")
    before = tree(tmp_path)
    refuse(asked(sources, vocabulary, tmp_path / "begun/train"), UsageError, "inside the dataset")
    assert tree(tmp_path) == before


def test_beside_a_manifest_of_something_else(
    sources: Path, vocabulary: Path, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a web site"}')
    config = asked(sources, vocabulary, tmp_path / "out")
    storage = open_storage(config.output)
    found = plan_shard(config, storage)
    assert found.todo == tuple(range(len(found.parts)))
    assert not (tmp_path / "out").exists()
    storage.create()
    with storage.exclusive():
        assert begun(found, storage).todo == found.todo


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({}, ConfigMismatchError, "sequence_length"),
        ({"tokenizer": "/nonexistent.tiktoken"}, UsageError, "nonexistent"),
    ],
)
def test_another_configuration(
    sources: Path,
    vocabulary: Path,
    dataset: Built,
    changes: dict[str, object],
    error: type[ShardmillError],
    match: str,
) -> None:
    before = tree(dataset.root)
    config = asked(sources, vocabulary, dataset.root, **({"sequence_length": 16} | changes))
    refuse(config, error, match)
    assert tree(dataset.root) == before


def test_a_folder_of_something_else(sources: Path, vocabulary: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    before = tree(tmp_path)
    refuse(asked(sources, vocabulary, tmp_path), UsageError, "holds other files")
    assert tree(tmp_path) == before


def test_in_a_bucket(sources: Path, vocabulary: Path, dataset: Built, bucket: str) -> None:
    storage = open_storage(f"s3://{bucket}/a/data")
    for path in ("manifest.json", "train/index.json"):
        storage.put(path, (dataset.root / path).read_bytes())
    before = storage.list()
    for below in ("train", "x/y"):
        refuse(
            asked(sources, vocabulary, f"{storage}/{below}"), UsageError,
            f"lies inside the dataset {storage},",
        )  # fmt: skip
    refuse(asked(sources, vocabulary, storage), ShardmillError, "sequence_length|tokenizer")
    assert storage.list() == before
