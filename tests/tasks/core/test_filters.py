"""A dataset of filtered documents: which stay, which are counted, and what `verify` checks."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import (
    Forger,
    build_from,
    manifest_of,
    require_sound,
    streams_of,
)
from tests.tasks.core.check.damage import check

DOCUMENTS = [
    text[: 40 + 97 * (number % 13)] for number, text in enumerate(make_documents(80, seed=9))
]
LANGUAGES = ["en" if number % 3 else "de" for number in range(len(DOCUMENTS))]
FILTERS: dict[str, Any] = {
    "where": "language == 'en'",
    "min_characters": 60,
    "min_tokens": 40,
    "max_tokens": 400,
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("languages")
    for number in range(2):
        rows = slice(number * 40, number * 40 + 40)
        table = pa.table({"text": DOCUMENTS[rows], "language": LANGUAGES[rows]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=9)
    return folder


@pytest.fixture(scope="module")
def filtered(sources, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("filtered") / "dataset"
    return build_from(sources, root, **FILTERS)


def test_what_stays_is_what_a_filtered_source_would_give(filtered, tmp_path) -> None:
    report = require_sound(filtered, deep=True, deep_documents=50)
    assert report.checked.retokenized > 10
    manifest = manifest_of(filtered)
    assert manifest.spec.filters.given() == FILTERS
    dropped = {
        name: sum(part.dropped_documents[name] for part in manifest.parts) for name in FILTERS
    }
    assert dropped["where"] == LANGUAGES.count("de")
    assert all(dropped.values())
    (tmp_path / "sources").mkdir()
    for number in range(2):
        rows = slice(number * 40, number * 40 + 40)
        texts = [
            text
            for text, language in zip(DOCUMENTS[rows], LANGUAGES[rows], strict=True)
            if language == "en" and len(text) >= 60
        ]
        pq.write_table(pa.table({"text": texts}), tmp_path / f"sources/{number}.parquet")
    left = {name: FILTERS[name] for name in ("min_tokens", "max_tokens")}
    by_hand = build_from(tmp_path / "sources", tmp_path / "by-hand", **left)
    assert streams_of(filtered) == streams_of(by_hand)
    lengths = pq.read_table(filtered / "documents/00000.parquet")["tokens"].to_numpy()
    assert lengths.min() >= 40
    assert lengths.max() <= 400


def test_small_files_taken_together_count_the_same(filtered, sources, tmp_path) -> None:
    together = build_from(sources, tmp_path / "together", min_part_size="1GiB", **FILTERS)
    (part,) = manifest_of(together).parts
    parts = manifest_of(filtered).parts
    assert part.dropped_documents == {
        name: sum(one.dropped_documents[name] for one in parts) for name in FILTERS
    }
    assert part.null_documents == 0
    require_sound(together, deep=True, deep_documents=50)


@pytest.mark.parametrize("field", [*FILTERS])
def test_a_record_that_counts_otherwise_is_found(filtered, tmp_path, field) -> None:
    root = shutil.copytree(filtered, tmp_path / "forged")
    forger = Forger(root)
    counts = dict(forger.records[1].dropped_documents)
    counts[field] -= 1
    forger.change(1, dropped_documents=counts, null_documents=1)
    forger.seal()
    report = check(root, deep=True, deep_documents=5000)
    assert {finding.file for finding in report.findings} == {"parts/00001.json"}
    said = " ".join(finding.problem for finding in report.findings)
    assert "null_documents is 1, made again 0" in said
    assert field in said
