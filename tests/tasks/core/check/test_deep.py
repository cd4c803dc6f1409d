"""`verify --deep` compares a dataset with its sources."""

from pathlib import Path

import pytest

from tests.tasks.core.build_dataset import Forger, build_dataset, require_sound
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


def another_id(forger: Forger) -> None:
    ids = forger.stream(1, "train")
    ids[3] = 65 if ids[3] != 65 else 66
    forger.set_stream(1, "train", ids)


def another_split(forger: Forger) -> None:
    """Move a document from train to holdout, in every file."""
    documents = forger.listed(1)
    number = next(n for n, (_, split, _) in enumerate(documents) if split == "train")
    row, _, ids = documents[number]
    documents[number] = (row, "holdout", ids)
    forger.set_listed(1, documents)


def left_out(forger: Forger) -> None:
    documents = forger.listed(1)
    del documents[0]
    forger.set_listed(1, documents)
    forger.change(1, empty_documents=forger.records[1].empty_documents + 1)


@pytest.mark.parametrize(
    ("change", "file", "words"),
    [
        (another_id, DOCUMENTS, "hash_of_ids"),
        (another_split, DOCUMENTS, "holdout"),
        (left_out, DOCUMENTS, "not listed"),
        (lambda forger: forger.change(1, text_bytes=1), RECORD, "text_bytes"),
        (
            lambda forger: forger.change(1, null_documents=1, empty_documents=2),
            RECORD,
            "null_documents",
        ),
    ],
)
def test_only_the_sources_show_it(change, file, words, copy) -> None:
    assert forged(copy, change) == set()
    report = check(copy, deep=True, deep_documents=ALL)
    assert files_named(report) == {file}
    assert words in report.findings[0].problem


@pytest.mark.parametrize("damage", [flip, lengthen, Path.unlink])
def test_a_source_that_changed_is_named(damage, tmp_path, texts) -> None:
    root = build_dataset(tmp_path, texts)
    source = tmp_path / "sources/001.parquet"
    damage(source)
    require_sound(root)
    report = check(root, deep=True)
    assert files_named(report) == {str(source)}
    assert report.checked.sources == 2


def test_as_many_parts_are_made_again_as_hold_so_many_documents(sound) -> None:
    for documents in (1, 19, 20, 30, 40, 99):
        report = require_sound(sound, deep=True, deep_documents=documents)
        again = report.checked.retokenized
        assert min(documents, report.checked.documents) <= again
        assert again < documents + 20  # the largest part
    assert report.checked.sources == 3
    drawn = [check(sound, deep=True, deep_documents=1, seed=seed) for seed in range(9)]
    assert {report.checked.retokenized for report in drawn} == {20, 19, 1}
