"""Storage that fails every file ends the check, after a few of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from streaming_ext.base.errors import StorageDownError, TransientStorageError
from streaming_ext.store import LocalStorage
from tasks.core.check.verify import verify
from tasks.core.reading.dataset_files import MAX_FAILURES
from tests.tasks.core.build_dataset import build_dataset


class Failing(LocalStorage):
    """Answers the first reads, and then fails N of each ten."""

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
def root(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[str | None]], rank_path: Path
) -> Path:
    folder = tmp_path_factory.mktemp("down")
    return build_dataset(folder, texts * 5, tokenizer=str(rank_path), shard_size=1024)


@pytest.mark.parametrize("after", [1, 22, 40])
def test_a_storage_that_fails_for_ever_ends_the_check(root: Path, after: int) -> None:
    storage = Failing(root, after=after, of_ten=10)
    with pytest.raises(StorageDownError, match=f"failed {MAX_FAILURES} files in a row.*503"):
        verify(storage, deep=True, workers=2)
    assert storage.reads <= after + MAX_FAILURES + 8  # those that other threads had in hand


def test_files_that_fail_now_and_then_are_findings(root: Path) -> None:
    report = verify(Failing(root, after=20, of_ten=1), workers=1)
    assert len(report.findings) > 3
    assert report.checked.files > 50
