"""Every format at the edges: no documents, a large one, a disk that takes no more."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streaming_ext.base.errors import ScratchError
from streaming_ext.format.layout import EXPORT
from streaming_ext.store import LocalStorage
from tasks.core.check.export import verify_export
from tasks.core.derive.export_records import describe_export
from tests.streaming_ext.build import build
from tests.tasks.core.exports import readers
from tests.tasks.core.exports.exporting import content, documents_of, exported, planned, with_end
from tests.tasks.core.exports.readers import READERS

NAMES = sorted(READERS)
LARGE = list(range(98)) * 30
Parts = list[list[tuple[str, list[int]]]]
BOTH_SPLITS: dict[str, Parts] = {
    "parts without documents": [[], [("train", [1, 2]), ("holdout", [7])], [], [("train", [3])]],
    "a large document": [[("train", [1]), ("train", LARGE), ("train", [2])], [("holdout", LARGE)]],
}
CASES: dict[str, Parts] = {
    "no documents": [[], []],
    "no holdout": [[("train", [1, 2])], [("train", [3])]],
    "no train": [[("holdout", [1, 2])], []],
    **BOTH_SPLITS,
}
# Formats whose files have a bound, which the large document is beyond.
BOUNDED: dict[str, dict[str, Any]] = {
    "megatron": {},
    "llmc": {},
    "litdata": {},
    "webdataset": {"rows": "documents"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_sound(
    name: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = build(tmp_path / "dataset", CASES[case]).root
    root = exported(dataset, tmp_path / "out", name)
    report = verify_export(LocalStorage(root), workers=2)
    assert report.findings == ()
    assert not report.not_compared
    assert report.documents == sum(map(len, CASES[case]))
    assert planned(dataset, root, name).published
    documents = documents_of(CASES[case])
    described = describe_export(LocalStorage(root)).manifest.splits
    assert set(described) == {split for split, held in documents.items() if held}
    if case in BOTH_SPLITS:
        monkeypatch.setattr(readers, "PARTS", CASES[case])
        assert READERS[name](root) == {split: with_end(held) for split, held in documents.items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", BOUNDED)
def test_an_export_in_files_of_few_bytes_is_sound(name: str, case: str, tmp_path: Path) -> None:
    dataset = build(tmp_path / "dataset", CASES[case]).root
    root = exported(dataset, tmp_path / "out", name, max_file_size=1200, **BOUNDED[name])
    assert verify_export(LocalStorage(root)).findings == ()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to write more bytes to a file, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", NAMES)
def test_a_disk_that_takes_no_more(name: str, tmp_path: Path) -> None:
    parts = [[("train", LARGE * 3)], [("train", LARGE * 3)]]
    dataset = build(tmp_path / "dataset", parts).root
    whole = content(exported(dataset, tmp_path / "whole", name))
    with files_of_at_most(8_000), pytest.raises(ScratchError, match=r"Cannot write to scratch .*"):
        exported(dataset, tmp_path / "out", name)
    assert not (tmp_path / "out" / EXPORT).exists()
    left = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [path for path in left if path.startswith(str(tmp_path))]
    assert content(exported(dataset, tmp_path / "out", name)) == whole
