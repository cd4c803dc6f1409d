"""`verify` names the file that a disk or a person has damaged."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming_ext.base.errors import (
    NewerVersionError,
    NotADatasetError,
    StorageDownError,
    TransientStorageError,
)
from streaming_ext.store import LocalStorage
from tasks.core.check.verify import verify
from tasks.core.reading.dataset_files import MAX_FAILURES
from tests.command_line import file_hashes
from tests.tasks.core.build_dataset import build_dataset
from tests.tasks.core.check.damage import (
    DOCUMENTS,
    RECORD,
    check,
    files_named,
    flip,
    lengthen,
)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


KINDS = [
    "train/00001/shard.00000.mds.zstd",
    "holdout/00000/shard.00000.mds.zstd",
    DOCUMENTS,
    RECORD,
    "train/index.json",
    "holdout/index.json",
    "tokenizer/ranks.tiktoken",
    "tokenizer/tokenizer_spec.json",
]


@pytest.mark.parametrize("file", KINDS)
def test_damage_names_the_file_and_no_other(file, copy) -> None:
    data = (copy / file).read_bytes()
    for damage in (lengthen, Path.unlink):
        damage(copy / file)
        assert files_named(check(copy)) == {file}
        (copy / file).write_bytes(data)


def test_files_that_nothing_lists(copy) -> None:
    extras = {
        "train/00001/shard.99999.mds.zstd",
        "train/00099/shard.00000.mds.zstd",
        "train/00001/shard.00000.mds",
        "documents/00099.parquet",
        "parts/00099.json",
        "notes.txt",
        ".incoming/0123456789abcdef",
        "tokenizer/tokenizer.json",
    }
    for extra in extras:
        (copy / extra).parent.mkdir(exist_ok=True)
        (copy / extra).write_bytes(b"?")
    assert files_named(check(copy)) == extras


def test_every_byte_counts(copy) -> None:
    rng = random.Random(0)
    for file in file_hashes(copy):
        size = (copy / file).stat().st_size
        for position in rng.sample(range(size), min(size, 2)):
            flip(copy / file, position)
            findings = check(copy, workers=1).findings
            assert any(file in str(finding) for finding in findings), f"{file}, byte {position}"
            flip(copy / file, position)


def test_one_damage_hides_no_other(copy) -> None:
    damaged = {*KINDS, "manifest.json", "documents/00002.parquet"} - {"train/index.json"}
    for file in damaged:
        truncate(copy / file)
    (copy / "manifest.json").write_bytes(b"{}")
    # Without the manifest, no file says which tokenizer files and index there should be.
    expected = damaged - {"holdout/index.json", "tokenizer/ranks.tiktoken"}
    named = files_named(check(copy))
    assert {"manifest.json", "documents/00002.parquet", RECORD} <= named
    assert expected - named <= {KINDS[0], DOCUMENTS, "tokenizer/tokenizer_spec.json"}
    assert check(copy, workers=1).findings == check(copy, workers=4).findings


def test_no_manifest(copy, tmp_path) -> None:
    (copy / "manifest.json").unlink()
    with pytest.raises(NotADatasetError, match=r"unfinished.*3 parts are recorded"):
        check(copy)
    with pytest.raises(NotADatasetError, match="no dataset"):
        check(tmp_path / "missing")


def test_a_dataset_of_a_newer_version_is_not_called_damaged(copy) -> None:
    value = json.loads((copy / "manifest.json").read_bytes()) | {"format": 2, "new": [1]}
    (copy / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(NewerVersionError, match=r"manifest\.json was made by a newer shardmill"):
        check(copy)


# --- storage that fails every file ends the check after a few of them


class Failing(LocalStorage):
    """Answers the first reads, and then fails `of_ten` of each ten."""

    def __init__(self, root: Path, *, after: int, of_ten: int) -> None:
        super().__init__(root)
        self.reads, self.after, self.of_ten = 0, after, of_ten

    def read(self, path: str) -> bytes:
        self._fail(path)
        return super().read(path)

    def read_into(self, path: str, room: memoryview, seen: Callable[[memoryview], object]) -> int:
        self._fail(path)
        return super().read_into(path, room, seen)

    def _fail(self, path: str) -> None:
        self.reads += 1
        if self.reads > self.after and self.reads % 10 < self.of_ten:
            raise TransientStorageError(f"Cannot read {path}: 503.")


@pytest.fixture(scope="module")
def root(tmp_path_factory, texts) -> Path:
    folder = tmp_path_factory.mktemp("down")
    return build_dataset(folder, texts * 5, shard_size=1024)


@pytest.mark.parametrize("after", [1, 22, 40])
def test_a_storage_that_fails_for_ever_ends_the_check(root, after) -> None:
    storage = Failing(root, after=after, of_ten=10)
    with pytest.raises(StorageDownError, match=f"failed {MAX_FAILURES} files in a row.*503"):
        verify(storage, deep=True, workers=2)
    assert storage.reads <= after + MAX_FAILURES + 8  # the files that other threads had in hand


def test_files_that_fail_now_and_then_are_findings(root) -> None:
    report = verify(Failing(root, after=20, of_ten=1), workers=1)
    assert len(report.findings) > 3
    assert report.checked.files > 50
