"""WebDataset: documents as samples, where they come from, numbers, lists of tars."""

import json
import tarfile
from pathlib import Path

import pytest

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


def members(root: Path) -> list[tarfile.TarInfo]:
    """Of all tars."""
    found = []
    for file in sorted(root.glob("*/*.tar")):
        with tarfile.open(file) as opened:
            found += opened.getmembers()
    return found


@pytest.mark.parametrize("provenance", [False, True])
def test_documents_as_samples(tmp_path: Path, *, provenance: bool) -> None:
    """Each names its source and row, if asked to."""
    dataset = make_dataset(tmp_path).root
    root = exported(dataset, tmp_path / "out", "webdataset", **DOCUMENTS, provenance=provenance)
    for split, held in documents_of().items():
        samples = read_tars(root, split)
        assert [array_of(sample["npy"]).tolist() for sample in samples] == with_end(held)
        origins = [
            {"source": f"mem://source-{part}.parquet", "row": row}
            for part, rows in enumerate(PARTS)
            for row, (of, _) in enumerate(rows)
            if of == split
        ]
        listed = [json.loads(sample["json"]) for sample in samples if "json" in sample]
        assert listed == (origins if provenance else [])


@pytest.mark.parametrize("options", [{}, {**DOCUMENTS, "provenance": True}], ids=str)
def test_members_hold_no_time_or_user(tmp_path: Path, options: dict[str, object]) -> None:
    root = exported(make_dataset(tmp_path).root, tmp_path / "out", "webdataset", **options)
    found = {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members(root)}
    assert found == {(0, 0, 0, "", "", 0o644)}


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
    names = [member.name for member in members(root)]
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
