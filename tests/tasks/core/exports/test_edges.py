"""Every format at the edges: no documents, a large one, a disk that takes no more."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streaming_ext.base.errors import ScratchError
from streaming_ext.format.layout import EXPORT
from streaming_ext.store import LocalStorage
from tasks.core.derive.export_format import ExportFiles
from tasks.core.derive.export_records import describe_export
from tests.streaming_ext.build import build
from tests.tasks.core.exports import readers
from tests.tasks.core.exports.exporting import (
    checked,
    content,
    documents_of,
    exported,
    open_files,
    planned,
)
from tests.tasks.core.exports.readers import READERS, read

NAMES = sorted(READERS)
LARGE = list(range(98)) * 30
Parts = list[list[tuple[str, list[int]]]]
LARGE_DOCUMENT: Parts = [
    [],
    [("train", [1]), ("train", LARGE), ("train", [2])],
    [],
    [("holdout", LARGE)],
]
CASES: dict[str, Parts] = {
    "no documents": [[], []],
    "no train": [[("holdout", [1, 2])], []],
    "no holdout": [[("train", [1, 2])], []],
    "a large document, parts without any": LARGE_DOCUMENT,
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
def test_an_export_is_sound(name, case, tmp_path, monkeypatch) -> None:
    dataset = build(tmp_path / "dataset", CASES[case]).root
    root = exported(dataset, tmp_path / "out", name)
    report = checked(root)
    assert report.findings == ()
    assert not report.not_compared
    assert report.documents == sum(map(len, CASES[case]))
    assert planned(dataset, root, name).published
    documents = documents_of(CASES[case])
    described = describe_export(LocalStorage(root)).manifest.splits
    assert set(described) == {split for split, held in documents.items() if held}
    if CASES[case] == LARGE_DOCUMENT:
        monkeypatch.setattr(readers, "PARTS", CASES[case])
        assert read(name, root) == documents


@pytest.mark.parametrize("name", BOUNDED)
def test_an_export_in_files_of_few_bytes_is_sound(name, tmp_path) -> None:
    dataset = build(tmp_path / "dataset", LARGE_DOCUMENT).root
    root = exported(dataset, tmp_path / "out", name, max_file_size=1200, **BOUNDED[name])
    assert checked(root).findings == ()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to write more bytes to a file, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", ["levanter", "litdata", "megatron", "olmo", "parquet"])
def test_a_disk_that_takes_no_more(name, tmp_path) -> None:
    parts = [[("train", LARGE * 3)], [("train", LARGE * 3)]]
    dataset = build(tmp_path / "dataset", parts).root
    expected = content(exported(dataset, tmp_path / "expected", name))
    with files_of_at_most(8_000), pytest.raises(ScratchError, match=r"Cannot write to scratch .*"):
        exported(dataset, tmp_path / "out", name)
    assert not (tmp_path / "out" / EXPORT).exists()
    assert open_files(tmp_path) == []
    assert content(exported(dataset, tmp_path / "out", name)) == expected


def test_spans_of_a_shared_file_stand_where_they_belong(tmp_path) -> None:
    out = ExportFiles(tmp_path / "scratch", tmp_path / "shared")
    data = os.urandom(20 * 2**20 + 5)
    sink = out.span("train/all.bin", 3)
    for first in range(0, len(data), 3_000_001):
        sink.write(data[first : first + 3_000_001])
    sink.close()
    head = out.span("train/all.bin", 0)
    head.write(b"abc")
    head.close()
    assert (tmp_path / "shared/train/all.bin").read_bytes() == b"abc" + data
    assert [(span.start, span.size) for span in out.spans] == [(3, len(data)), (0, 3)]
