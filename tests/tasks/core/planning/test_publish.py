"""A dataset is complete when its manifest exists, which is put last."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from streaming_ext.base.errors import SourceError, TransientStorageError
from streaming_ext.format.manifest import SplitSummary
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.schema import content_hash
from streaming_ext.store import LocalStorage
from tasks.core.reporting.progress import RunProgress
from tasks.core.shard.shard_build import ShardBuild
from tasks.steps import finish
from tests.tasks.core.doubles import write_source
from tests.tasks.core.planning.conftest import Output
from tests.tasks.core.running import publish

# Documents have 2 tokens and an end-of-text id; part 1 has no documents.
TEXTS: tuple[list[str | None], ...] = (["ab", "cd", None], [], ["ef"])


class Forgetful(LocalStorage):
    """Confirms every put, and loses the first put of one file."""

    loses: str = ""
    order: tuple[str, ...] = ()

    def put(self, path: str, data: bytes) -> None:
        self.order = (*self.order, path)
        if path == self.loses:
            self.loses = ""
        else:
            super().put(path, data)


@pytest.fixture
def storage(output) -> Forgetful:
    return Forgetful(Path(output.config.output))


@pytest.fixture
def plan(output, tmp_path) -> ShardBuild:
    """A plan of three parts, all of them recorded."""
    shutil.rmtree(tmp_path / "sources")
    for part, texts in enumerate(TEXTS):
        write_source(tmp_path / f"sources/{part}.parquet", texts)
    config = output.changed(sequence_length=4, holdout_fraction=0.0, compression="none")
    return Output(config, output.storage).do(range(3))


def test_by_hand(plan, storage) -> None:
    publish(plan, storage)
    manifest = read_manifest(storage)
    assert storage.order[0] == "train/index.json"
    assert storage.order[-1] == "manifest.json"
    assert [(part.part, part.rows) for part in manifest.parts] == [(0, 3), (1, 0), (2, 1)]
    # Part 0 has 6 tokens in 2 samples of 4; part 2 has 3 tokens in one sample.
    index = storage.read("train/index.json")
    assert manifest.splits == {
        "train": SplitSummary(
            index=manifest.splits["train"].index,
            documents=3,
            tokens=9,
            padding=3,
            samples=3,
            shards=2,
        )
    }
    assert manifest.splits["train"].index.xxh128 == content_hash(index)
    assert (manifest.tokens, manifest.text_bytes) == (9, 6)
    shards = json.loads(index)["shards"]
    assert [(shard["raw_data"]["basename"], shard["samples"]) for shard in shards] == [
        ("00000/shard.00000.mds", 2),
        ("00002/shard.00000.mds", 1),
    ]
    first = {path: storage.read(path) for path in storage.list()}
    publish(plan, storage)
    assert {path: storage.read(path) for path in storage.list()} == first


def test_no_parts_at_all(plan, tmp_path) -> None:
    empty = LocalStorage(tmp_path / "empty")
    empty.create()
    with pytest.raises(SourceError, match="no document is left of 0 rows: the sources are empty"):
        publish(replace(plan, parts=(), todo=()), empty)
    assert not empty.list()


@pytest.mark.parametrize("path", ["train/index.json", "tokenizer/ranks.tiktoken"])
def test_a_store_that_lost_what_publishing_put_is_not_believed(plan, storage, path) -> None:
    storage.loses = path
    with pytest.raises(TransientStorageError, match=f"confirmed {path}, but does not"):
        publish(plan, storage)
    assert "manifest.json" not in storage.list()
    publish(plan, storage)  # Prefect tries it again
    assert {path, "manifest.json"} <= storage.list().keys()


def test_what_it_waits_for_is_reported(plan, storage, monkeypatch) -> None:
    progress = RunProgress()
    progress.begin(parts=3, source_bytes=9)
    seen = []
    for name in ("list", "put"):
        real = getattr(Forgetful, name)

        def noted(*arguments: object, real: Callable[..., object] = real) -> object:
            seen.append(progress.snapshot().phase)
            return real(*arguments)

        monkeypatch.setattr(Forgetful, name, noted)
    storage.loses = "train/index.json"
    with pytest.raises(TransientStorageError):
        finish.fn(plan, storage, progress)
    phases = list(dict.fromkeys(seen))
    assert phases == [
        "publishing, reading the records",
        "publishing, putting the indexes",
        "publishing, putting the tokenizer",
        "publishing, checking that nothing is missing",
    ]
    waiting = progress.snapshot().phase
    assert waiting.startswith("publishing, waiting to try again: ")
    assert "confirmed train/index.json" in waiting
    finish.fn(plan, storage, progress)
    assert seen[-2:] == [
        "publishing, putting the manifest",
        "publishing, removing what only the run needed",
    ]
