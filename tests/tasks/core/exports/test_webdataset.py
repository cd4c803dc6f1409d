"""WebDataset: documents as samples, where they come from, numbers, lists of tars."""

import json
import tarfile
from pathlib import Path

import pytest

from streaming_ext.base.errors import UsageError
from tests.streaming_ext.build import build, numbered_parts, some_documents
from tests.tasks.core.exports.exporting import (
    PARTS,
    content,
    documents_of,
    exported,
    make_dataset,
    with_end,
)
from tests.tasks.core.exports.readers import array_of, read_tars

DOCUMENTS = {"rows": "documents"}


def keys(root: Path) -> list[str]:
    """Names of all members of all tars."""
    found = []
    for file in sorted(root.glob("*/*.tar")):
        with tarfile.open(file) as opened:
            found += opened.getnames()
    return found


@pytest.mark.parametrize("vocab_size", [100, 70_000])
def test_documents_as_samples(tmp_path: Path, vocab_size: int) -> None:
    dataset = make_dataset(tmp_path, vocab_size=vocab_size).root
    root = exported(dataset, tmp_path / "out", "webdataset", **DOCUMENTS)
    for split, held in documents_of().items():
        found = [array_of(sample["npy"]) for sample in read_tars(root, split)]
        assert [ids.tolist() for ids in found] == with_end(held)
        assert {ids.dtype.itemsize for ids in found} == {2 if vocab_size == 100 else 4}


def test_documents_name_their_source_and_row(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path).root
    root = exported(dataset, tmp_path / "out", "webdataset", **DOCUMENTS, provenance=True)
    for split in ("train", "holdout"):
        listed = [json.loads(sample["json"]) for sample in read_tars(root, split)]
        assert listed == [
            {"source": f"mem://source-{part}.parquet", "row": row}
            for part, rows in enumerate(PARTS)
            for row, (of, _) in enumerate(rows)
            if of == split
        ]


@pytest.mark.parametrize("options", [{}, {**DOCUMENTS, "provenance": True}], ids=str)
def test_members_hold_no_time_or_user(tmp_path: Path, options: dict[str, object]) -> None:
    root = exported(make_dataset(tmp_path).root, tmp_path / "out", "webdataset", **options)
    listed = set()
    for file in root.glob("*/*.tar"):
        with tarfile.open(file) as opened:
            listed |= {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in opened}
    assert listed == {(0, 0, 0, "", "", 0o644)}


@pytest.mark.parametrize("options", [{}, DOCUMENTS, {"sequence_length": 5}], ids=str)
def test_many_tars_are_numbered_through(tmp_path: Path, options: dict[str, object]) -> None:
    documents = some_documents(120, seed=4)
    dataset = build(tmp_path / "dataset", numbered_parts(documents, parts=4))
    root = exported(dataset.root, tmp_path / "out", "webdataset", max_file_size=8000, **options)
    tars = sorted((root / "train").glob("*.tar"))
    assert len(tars) > 8
    assert [file.name for file in tars] == [f"train-{n:06}.tar" for n in range(len(tars))]
    if options != DOCUMENTS:
        assert max(file.stat().st_size for file in tars) <= 8000
    names = keys(root)
    assert len(names) == len(set(names)) > 100
    assert len(read_tars(root, "train")) > 100


def test_energon_finds_the_splits(tmp_path: Path) -> None:
    root = exported(make_dataset(tmp_path).root, tmp_path / "out", "webdataset")
    found = json.loads((root / ".nv-meta/split.yaml").read_text())
    assert found["split_parts"]["val"] == [
        "holdout/holdout-000000.tar",
        "holdout/holdout-000001.tar",
    ]
    assert set(found["split_parts"]["train"]) <= set(content(root))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"provenance": True}, "--provenance is of no use with webdataset, which takes --rows"),
        (
            {**DOCUMENTS, "sequence_length": 8},
            "--sequence-length is of no use with webdataset, which takes --rows",
        ),
        (
            {"sequence_length": 2048, "max_file_size": 2000},
            "webdataset has at least",
        ),
    ],
)
def test_what_it_cannot_give_is_refused(
    tmp_path: Path, options: dict[str, object], words: str
) -> None:
    dataset = make_dataset(tmp_path).root
    with pytest.raises(UsageError, match=words):
        exported(dataset, tmp_path / "out", "webdataset", **options)
