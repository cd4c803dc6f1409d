"""`verify --deep` compares with the sources."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.tasks.core.build_dataset import Forger, build_dataset
from tests.tasks.core.check.damage import (
    ALL,
    DOCUMENTS,
    RECORD,
    check,
    files_named,
    flip,
    forged,
    lengthen,
)


def test_deep_finds_other_ids_of_a_text(copy: Path) -> None:
    def change(forger: Forger) -> None:
        ids = forger.stream(1, "train")
        ids[3] = 65 if ids[3] != 65 else 66
        forger.set_stream(1, "train", ids)

    assert forged(copy, change) == set()
    report = check(copy, deep=True, deep_documents=ALL)
    assert files_named(report) == {DOCUMENTS}
    assert "hash_of_ids" in report.findings[0].problem


def move_across(forger: Forger) -> None:
    """A document moves from train to holdout, in every file."""
    record, eot_id = forger.records[1], forger.spec.tokenizer.eot_id
    length, columns = forger.spec.sequence_length, forger.documents(1)
    streams = {}
    for split, held in record.splits.items():
        streams[split] = forger.stream(1, split)[: held.tokens]
    first = columns["split"].index("train")
    moved = streams["train"][: columns["tokens"][first] + 1]
    held_before = columns["split"][:first].count("holdout")
    ends = np.flatnonzero(streams["holdout"] == eot_id)
    at = int(ends[held_before - 1]) + 1 if held_before else 0
    streams["train"] = streams["train"][len(moved) :]
    streams["holdout"] = np.insert(streams["holdout"], at, moved)
    columns["split"][first] = "holdout"
    forger.set_documents(1, columns)
    for split, by in (("train", -1), ("holdout", 1)):
        ids = streams[split]
        padding = -len(ids) % length
        whole = np.concatenate((ids, np.full(padding, eot_id, ids.dtype)))
        documents = record.splits[split].documents + by
        forger.set_stream(1, split, whole, documents=documents, tokens=len(ids), padding=padding)


def test_deep_finds_a_document_of_the_other_split(copy: Path) -> None:
    assert forged(copy, move_across) == set()
    report = check(copy, deep=True)
    assert files_named(report) == {DOCUMENTS}
    assert "holdout" in report.findings[0].problem


def test_deep_finds_a_document_that_was_left_out(copy: Path) -> None:
    def change(forger: Forger) -> None:
        held, columns = forger.records[1].splits["train"], forger.documents(1)
        first, length = columns["split"].index("train"), forger.spec.sequence_length
        ids = forger.stream(1, "train")[columns["tokens"][first] + 1 : held.tokens]
        padding = -len(ids) % length
        whole = np.concatenate((ids, np.full(padding, forger.spec.tokenizer.eot_id)))
        for values in columns.values():
            del values[first]
        forger.set_documents(1, columns)
        counts = {"documents": held.documents - 1, "tokens": len(ids), "padding": padding}
        forger.set_stream(1, "train", whole, **counts)
        forger.change(1, empty_documents=forger.records[1].empty_documents + 1)

    assert forged(copy, change) == set()
    report = check(copy, deep=True)
    assert files_named(report) == {DOCUMENTS}
    assert "not listed" in report.findings[0].problem


@pytest.mark.parametrize(
    "update",
    [
        {"text_bytes": 1},
        {"null_documents": 1, "empty_documents": 2},
    ],
)
def test_deep_counts_the_rows_of_the_source(update: dict[str, int], copy: Path) -> None:
    assert forged(copy, lambda forger: forger.change(1, **update)) == set()
    assert files_named(check(copy, deep=True)) == {RECORD}


@pytest.mark.parametrize("damage", [flip, lengthen, Path.unlink])
def test_deep_names_a_source_that_changed(
    damage: Callable[[Path], None], tmp_path: Path, texts: list[list[str | None]], rank_path: Path
) -> None:
    root = build_dataset(tmp_path, texts, tokenizer=str(rank_path))
    source = tmp_path / "sources/001.parquet"
    damage(source)
    assert check(root).findings == ()
    report = check(root, deep=True)
    assert files_named(report) == {str(source)}
    assert report.checked.sources == 2


def test_deep_makes_as_many_parts_as_hold_so_many_documents(sound: Path) -> None:
    for documents in (1, 19, 20, 30, 40, 99):
        report = check(sound, deep=True, deep_documents=documents)
        assert report.findings == ()
        again = report.checked.retokenized
        assert min(documents, report.checked.documents) <= again
        assert again < documents + 20  # the largest part
    assert report.checked.sources == 3
    drawn = [check(sound, deep=True, deep_documents=1, seed=seed) for seed in range(9)]
    assert {report.checked.retokenized for report in drawn} == {20, 19, 1}
