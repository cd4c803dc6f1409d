"""Datasets that cannot be extended: each is told why, and what to do instead is possible."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.store import open_storage
from tasks.core.check.verify import verify
from tests.tasks.core.build_dataset import build_dataset, build_from
from tests.tasks.core.extending.extended import planned, write_source
from tests.tasks.core.imports.importing import (
    documents_in,
    imported,
    some_documents,
    write_ids,
)
from tests.tasks.core.moving.moved import merged
from tests.tasks.core.subsets.test_subset import subset

OLD = [[f"Old document {number} of file {file}." for number in range(9)] for file in range(2)]
NEW = [f"New document {number}, which came later." for number in range(9)]


@pytest.fixture
def old(tmp_path: Path, vocabulary: Path) -> Path:
    return build_dataset(tmp_path / "made", OLD, tokenizer=str(vocabulary), sequence_length=16)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_source(tmp_path / "new" / "a.parquet", NEW)


def refusal(dataset: Path, new: Path) -> str:
    with pytest.raises(UsageError, match="it cannot be extended") as caught:
        planned(dataset, new)
    return str(caught.value)


def require_all(both: Path, *datasets: Path) -> None:
    """Have a merged dataset hold all documents of some, each on its side."""
    assert verify(open_storage(str(both)), deep=True).findings == ()
    found, wanted = documents_in(both), [documents_in(each) for each in datasets]
    for split, documents in found.items():
        own = [document for each in wanted for document in each.get(split, [])]
        assert Counter(map(tuple, documents)) == Counter(map(tuple, own))


def test_merged(old: Path, new: Path, tmp_path: Path, vocabulary: Path) -> None:
    twin, both = Path(shutil.copytree(old, tmp_path / "twin")), tmp_path / "both"
    merged([old, twin], both, repeats=True)
    said = refusal(both, new)
    assert "is a merged dataset" in said
    assert f"`shardmill merge {both} NEW --output BOTH`" in said
    own = build_from(new.parent, tmp_path / "own", tokenizer=str(vocabulary), sequence_length=16)
    merged([both, own], tmp_path / "all")
    require_all(tmp_path / "all", old, twin, own)


def test_imported(new: Path, tmp_path: Path, vocabulary: Path) -> None:
    one, two = some_documents(30, 1000), some_documents(20, 1000, seed=1)
    parts = []
    for name, documents in (("one", one), ("two", two)):
        ids = write_ids(tmp_path / f"{name}.bin", documents, 1024)
        parts.append(
            imported(
                "nanogpt", ids, tmp_path / name, tokenizer=str(vocabulary), pattern="gpt2",
                holdout_fraction=0.2,
            )
        )  # fmt: skip
    said = refusal(parts[0], new)
    assert "is an imported dataset" in said
    assert f"`shardmill merge {parts[0]} NEW --output BOTH`" in said
    merged(parts, tmp_path / "both")
    require_all(tmp_path / "both", *parts)


def test_subset(old: Path, new: Path, tmp_path: Path) -> None:
    subset(old, tmp_path / "small", documents=5)
    assert "is a subset dataset" in refusal(tmp_path / "small", new)


def test_share(new: Path, old: Path, tmp_path: Path, vocabulary: Path) -> None:
    share = build_from(
        old.parent / "sources", tmp_path / "share", tokenizer=str(vocabulary), sequence_length=16,
        nodes=2, node_rank=0,
    )  # fmt: skip
    assert "is one node's dataset" in refusal(share, new)
