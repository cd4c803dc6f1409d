"""A dataset is complete when its manifest exists, which is put last."""

import json
import re
from pathlib import Path

import pytest

from flows.terminal.run_progress import describe
from streaming_ext.base.errors import (
    CorruptDatasetError,
    DatasetError,
    NotADatasetError,
    StorageError,
    TransientStorageError,
)
from streaming_ext.format.manifest import SplitSummary
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.schema import content_hash
from streaming_ext.store import LocalStorage
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.config import ShardConfig
from tasks.core.reporting.progress import RunProgress
from tasks.core.shard.shard_build import ShardBuild
from tasks.steps import finish
from tests.tasks.core.doubles import make_spec, tokenized, write_job, write_part, write_source
from tests.tasks.core.running import publish

# Documents of 2 tokens and an end-of-text id; part 1 has none.
TEXTS: tuple[list[str | None], ...] = (["ab", "cd", None], ["", None], ["ef"])


class Recorder(LocalStorage):
    """Remembers the order in which files are put in place."""

    order: tuple[str, ...] = ()

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self.order = (*self.order, path)


@pytest.fixture
def storage(tmp_path: Path) -> Recorder:
    made = Recorder(tmp_path / "out")
    made.create()
    return made


@pytest.fixture
def plan(tmp_path: Path, storage: Recorder) -> ShardBuild:
    """Three parts, all of them recorded."""
    spec = make_spec()
    sources: list[SourceFile] = []
    for part, texts in enumerate(TEXTS):
        sources.append(write_source(tmp_path / f"{part}.parquet", texts))
        tokenized(sources[part], tmp_path / "s", spec, part=part)
        write_part(write_job(tmp_path / "s", storage.root, part=part), storage)
    storage.order = ()
    made = ShardBuild(
        config=ShardConfig(sources=("x",), output=str(storage), tokenizer="bytes", workers=1),
        phase="shard",
        spec=spec,
        parts=tuple(Part.whole(*source) for source in enumerate(sources)),
        todo=(),
        published=False,
        scratch=tmp_path / "scratch",
    )
    made.tokenizer_folder.mkdir(parents=True)
    for name in ("ranks.tiktoken", "tokenizer_spec.json"):
        (made.tokenizer_folder / name).write_text(name)
    return made


def test_by_hand(plan: ShardBuild, storage: Recorder) -> None:
    publish(plan, storage)
    manifest = read_manifest(storage)
    assert storage.order[0] == "train/index.json"
    assert storage.order[-1] == "manifest.json"
    assert [part.part for part in manifest.parts] == [0, 1, 2]
    assert [part.rows for part in manifest.parts] == [3, 2, 1]
    # Part 0: 6 tokens in 2 samples of 4; part 2: 3 tokens in one.
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


def test_every_file_of_the_manifest_is_there(plan: ShardBuild, storage: Recorder) -> None:
    publish(plan, storage)
    manifest = read_manifest(storage)
    files = [
        *(part.record for part in manifest.parts),
        *(split.index for split in manifest.splits.values()),
        *manifest.tokenizer_files,
    ]
    assert len(files) >= 5
    for file in files:
        data = storage.read(file.path)
        assert (len(data), content_hash(data)) == (file.size, file.xxh128)


def test_read_manifest(plan: ShardBuild, storage: Recorder) -> None:
    with pytest.raises(NotADatasetError, match=r"no manifest\.json, .* no finished dataset"):
        read_manifest(storage)
    publish(plan, storage)
    manifest = read_manifest(storage)
    assert read_manifest(storage) == manifest
    storage.put("manifest.json", storage.read("manifest.json")[:-10])
    with pytest.raises(CorruptDatasetError, match=r"out/manifest\.json is no valid manifest"):
        read_manifest(storage)


def test_again_gives_the_same_bytes(plan: ShardBuild, storage: Recorder) -> None:
    publish(plan, storage)
    first = {path: storage.read(path) for path in storage.list()}
    publish(plan, storage)
    assert {path: storage.read(path) for path in storage.list()} == first


@pytest.mark.parametrize("lost", [[0], [2], [0, 1, 2]])
def test_records_that_went_missing_are_noticed(
    plan: ShardBuild, storage: Recorder, lost: list[int]
) -> None:
    for part in lost:
        storage.remove(f"parts/{part:05}.json")
    with pytest.raises(DatasetError, match=rf"the records of parts \{lost} are gone"):
        publish(plan, storage)
    assert "manifest.json" not in storage.list()


def test_a_damaged_record_is_noticed(plan: ShardBuild, storage: Recorder) -> None:
    record = storage.read("parts/00002.json")
    storage.put("parts/00002.json", record.replace(b'"rows": 1', b'"rows": 2'))
    with pytest.raises(CorruptDatasetError, match=r"parts/00002\.json is no valid part record"):
        publish(plan, storage)
    assert "manifest.json" not in storage.list()


def test_no_parts_at_all(plan: ShardBuild, storage: Recorder, tmp_path: Path) -> None:
    empty = LocalStorage(tmp_path / "empty")
    empty.create()
    none = ShardBuild(
        config=plan.config, phase="shard", spec=plan.spec, parts=(), todo=(), published=False,
        scratch=plan.scratch,
    )  # fmt: skip
    publish(none, empty)
    manifest = read_manifest(empty)
    assert manifest.parts == ()
    assert manifest.splits == {}  # MDS readers take no split without a sample
    assert not [path for path in empty.list() if path.endswith("index.json")]


class Forgetful(LocalStorage):
    """Says that it keeps every file, and loses the first puts of some."""

    def __init__(self, root: Path, *, loses: dict[str, int]) -> None:
        super().__init__(root)
        self.loses = loses

    def put(self, path: str, data: bytes) -> None:
        if self.loses.get(path, 0) > 0:
            self.loses[path] -= 1
        else:
            super().put(path, data)


@pytest.mark.parametrize("path", ["train/index.json", "tokenizer/ranks.tiktoken"])
def test_a_store_that_lost_what_publishing_put_is_not_believed(
    plan: ShardBuild, storage: Recorder, path: str
) -> None:
    forgetful = Forgetful(storage.root, loses={path: 1})
    with pytest.raises(TransientStorageError, match=f"confirmed {path}, but does not"):
        publish(plan, forgetful)
    assert "manifest.json" not in storage.list()
    publish(plan, forgetful)  # as Prefect tries it again
    assert {path, "manifest.json"} <= storage.list().keys()


@pytest.mark.parametrize("cut", [False, True])
def test_a_store_that_lost_a_shard_is_not_believed(
    plan: ShardBuild, storage: Recorder, *, cut: bool
) -> None:
    shard = storage.root / "train/00000/shard.00000.mds"
    data = shard.read_bytes()
    shard.unlink()  # a link to scratch
    if cut:
        shard.write_bytes(data[:-1])
    with pytest.raises(StorageError, match=r"confirmed train/00000/shard\.00000\.mds, .* again"):
        publish(plan, storage)
    assert "manifest.json" not in storage.list()


def test_what_it_waits_for_is_reported(plan: ShardBuild, storage: Recorder) -> None:
    """`publishing: 5/5` stood there for minutes, and said nothing of the store."""
    progress = RunProgress()
    progress.begin(parts=3, source_bytes=9)
    lines: list[str] = []

    class Watched(Forgetful):
        def list(self, folder: str = "") -> dict[str, int]:
            lines.append(describe(progress.snapshot()))
            return super().list(folder)

        def put(self, path: str, data: bytes) -> None:
            lines.append(f"{path} {describe(progress.snapshot())}")
            super().put(path, data)

    forgetful = Watched(storage.root, loses={"train/index.json": 1})
    with pytest.raises(TransientStorageError):
        finish.fn(plan, forgetful, progress)
    assert lines[0].startswith("publishing, reading the records: 0/3 parts")
    assert "train/index.json publishing, putting the indexes: 0/3 parts" in lines[1]
    assert "publishing, putting the tokenizer: " in lines[2]
    assert any("publishing, checking that nothing is missing: " in line for line in lines)
    assert re.match(
        "publishing, waiting to try again: .* confirmed train/index.json",
        progress.snapshot().phase,
    )
    finish.fn(plan, forgetful, progress)
    assert "manifest.json publishing, putting the manifest" in lines[-1]
