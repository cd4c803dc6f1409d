"""Lists that are read in many batches: what is found does not depend on how many they are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streaming_ext.store import LocalStorage
from tasks.core.check.decode import decode_samples
from tasks.core.check.findings import Report
from tasks.core.check.inspect import describe
from tasks.core.check.verify import verify
from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import Forger, build_dataset
from tests.tasks.core.check.damage import ALL

KINDS: dict[str, dict[str, Any]] = {
    "in the order of the sources": {},
    "deduplicated": {"deduplicate": "exact"},
    "shuffled and deduplicated": {"shuffle": "documents", "deduplicate": "exact"},
}


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path: Path, rank_path: Path) -> Path:
    made: list[str | None] = [text[:300] for text in make_documents(30, seed=9)]
    texts = [[*made, None, *made[:5]], [*made[20:], "", "another one"]]
    return build_dataset(tmp_path, texts, tokenizer=str(rank_path), **KINDS[request.param])


def small_batches(patch: pytest.MonkeyPatch, rows: int) -> None:
    patch.setattr("streaming_ext.format.parquet._BATCH_ROWS", rows)
    patch.setattr("tasks.core.reading.documents._BLOCK", 7 * rows)


def checked(root: Path) -> Report:
    report = verify(LocalStorage(root), deep=True, deep_documents=ALL)
    return replace(report, seconds=0.0)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_same_is_found(root: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(root)
    samples = range(describe(storage).splits["train"].summary.samples)
    whole = checked(root), describe(storage), decode_samples(storage, "train", samples)
    assert whole[0].findings == ()
    assert whole[0].checked.retokenized == whole[0].checked.documents > 30
    small_batches(monkeypatch, rows)
    report, description, decoded = (
        checked(root), describe(storage), decode_samples(storage, "train", samples)
    )  # fmt: skip
    assert report == whole[0]
    assert description.facts() == whole[1].facts()
    assert decoded == whole[2]


@pytest.mark.parametrize("root", ["in the order of the sources"], indirect=True)
def test_damage_behind_the_first_batch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forger = Forger(root)
    columns = forger.documents(0)
    columns["row"][20] = columns["row"][19]
    forger.set_documents(0, columns)
    forger.seal()
    small_batches(monkeypatch, 3)
    (finding,) = verify(LocalStorage(root)).findings
    assert finding.file == "documents/00000.parquet"
    assert "document 20 " in finding.problem
