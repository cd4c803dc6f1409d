"""Documents chosen by their columns equal those that a loop over the sources chooses."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.store import open_storage
from tasks.core.derive.config import SubsetConfig
from tasks.core.derive.subset import plan_subset
from tasks.core.reading.dataset_files import open_tokenizer, read_dataset
from tasks.core.reading.documents import PartOfDataset
from tasks.core.synthetic import make_documents
from tests.tasks.core import running
from tests.tasks.core.build_dataset import build_from, file_hashes, manifest_of, require_sound
from tests.tasks.core.extending.extended import extended
from tests.tasks.core.moving.moved import copied, merged

KEPT = "score,language"
SHUFFLED = {"shuffle": "documents", "shuffle_seed": 3}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cut": {"part_size": "4KiB"},
    "shuffled": SHUFFLED,
    "exact": {"deduplicate": "exact"},
    "normalized": {**SHUFFLED, "deduplicate": "normalized"},
}


class Document(NamedTuple):
    """A document as a dataset holds it; its text is that of its ids."""

    source: str
    row: int
    split: str
    tokens: int
    text: str


def subset(dataset: Path, output: Path, **options: Any) -> list[Document]:
    """The documents of a subset, which is sound."""
    config = SubsetConfig(dataset=str(dataset), output=str(output), **options)
    running.complete(plan_subset, config)
    require_sound(output, deep=True, deep_documents=10**6)
    return documents_of(output)


def documents_of(root: Path) -> list[Document]:
    """Every document, split by split, in the order of the parts."""
    storage = open_storage(str(root))
    files, manifest, records = read_dataset(storage)
    tokenizer, found = open_tokenizer(files, manifest.spec), []
    for split in manifest.splits:
        for record in records:
            for block in PartOfDataset(storage, manifest, record.part).documents(
                split, origins=True
            ):
                assert block.origins is not None
                begins = [0, *block.ends[:-1]]
                for begin, end, source, row in zip(
                    begins, block.ends, block.origins.sources, block.origins.rows, strict=True
                ):
                    own = block.origins.source_rows.of(int(row), int(source))
                    text = tokenizer.decode(block.stream[begin : end - 1])
                    if own.from_byte:  # parts before are left out: the row there is not known
                        texts = pq.read_table(own.source)["text"].to_pylist()
                        own = replace(own, row=texts.index(text))
                    found.append(Document(own.source, own.row, split, int(end - begin) - 1, text))
    return found


def write(file: Path, seed: int) -> None:
    """A source with copies, empty texts, and scores that may be missing or no numbers."""
    texts: list[str | None] = [
        text[: 40 + 9 * row] for row, text in enumerate(make_documents(40, seed=seed))
    ]
    texts[5], texts[6], texts[10], texts[30] = "", None, texts[8], "The same text everywhere."
    scores = [row % 7 / 2 if row % 11 else (math.nan if row % 2 else None) for row in range(40)]
    languages = [("de", "en", None)[row % 3] for row in range(40)]
    table = pa.table({"text": texts, "score": scores, "language": languages})
    pq.write_table(table, file, row_group_size=7)


@pytest.fixture(scope="module", params=[*KINDS, "extended", "extended shuffled", "subset"])
def dataset(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kind")
    (folder / "sources").mkdir()
    for number in range(3):
        write(folder / f"sources/{number}.parquet", number)
    kind = request.param.removeprefix("extended").strip()
    root = build_from(
        folder / "sources", folder / "dataset", keep_columns=KEPT, **KINDS.get(kind, {})
    )
    if "extended" in request.param:
        write(folder / "more.parquet", 9)
        extended(root, folder / "more.parquet")
    if kind == "subset":
        subset(root, folder / "subset", documents=70, seed=2)
        return folder / "subset"
    return root


def holds(score: float | None, language: str | None) -> bool:
    return score is not None and score >= 1 and language == "de"


def naive(dataset: Path, choose: Callable[..., bool] = holds) -> list[Document]:
    """The documents of a dataset that a function chooses by score and language of their rows."""
    tables: dict[str, list[dict[str, Any]]] = {}
    found = []
    for document in documents_of(dataset):
        rows = tables.setdefault(document.source, pq.read_table(document.source).to_pylist())
        row = rows[document.row]
        assert row["text"] == document.text
        if choose(row["score"], row["language"]):
            found.append(document)
    return found


WHERE = "score >= 1 and language == 'de'"


def test_the_documents_for_which_the_condition_holds(dataset, tmp_path) -> None:
    expected = naive(dataset)
    assert 5 < len(expected) < len(documents_of(dataset)) / 2
    assert subset(dataset, tmp_path / "german", where=WHERE) == expected
    rule = manifest_of(tmp_path / "german").spec.subset
    assert (rule.where, rule.documents, rule.seed) == (WHERE, len(expected), None)

    source, tokens = (
        expected[0].source,
        sorted(each.tokens for each in expected)[len(expected) // 2],
    )
    chosen = subset(
        tmp_path / "german",
        tmp_path / "short",
        where=f"source == '{source}' and tokens <= {tokens}",
    )
    assert chosen == [each for each in expected if each.source == source and each.tokens <= tokens]
    copied(tmp_path / "short", tmp_path / "copy")
    require_sound(tmp_path / "copy")


def test_a_number_of_these_documents(dataset, tmp_path) -> None:
    """The condition comes first, and the draw of fewer is part of the draw of more."""
    expected = naive(dataset)
    few = subset(dataset, tmp_path / "few", where=WHERE, documents=4, seed=5)
    more = subset(dataset, tmp_path / "more", where=WHERE, documents=len(expected) - 1, seed=5)
    assert len(few) == 4
    assert len(more) == len(expected) - 1
    assert {*few} < {*more} < {*expected}
    most = sum(each.tokens + 1 for each in expected) // 2
    half = subset(dataset, tmp_path / "half", where=WHERE, tokens=str(most))
    assert 0 < sum(each.tokens + 1 for each in half) <= most
    assert {*half} < {*expected}
    with pytest.raises(UsageError, match=f"has {len(expected)} documents for which .* asks for 99"):
        subset(dataset, tmp_path / "none", where=WHERE, documents=99)


def test_a_run_that_resumes_makes_the_same_bytes(dataset, tmp_path) -> None:
    config = SubsetConfig(dataset=str(dataset), output=str(tmp_path / "out"), where=WHERE)
    plan, storage = running.planned(plan_subset, config)
    running.do_parts(plan, storage, [0])
    subset(dataset, tmp_path / "out", where=WHERE)
    subset(dataset, tmp_path / "whole", where=WHERE)
    assert file_hashes(tmp_path / "out") == file_hashes(tmp_path / "whole")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("scor > 1", r"has no column 'scor'; its documents have score, language, tokens, source"),
        ("language > 1", r"00000\.parquet: column 'language' is of type large_string, and --where"),
        ("score > 99", "--where 'score > 99' holds for no document of"),
    ],
)
def test_conditions_that_fit_no_document_are_refused(tmp_path, where, message) -> None:
    (tmp_path / "sources").mkdir()
    write(tmp_path / "sources/0.parquet", 0)
    root = build_from(tmp_path / "sources", tmp_path / "dataset", keep_columns=KEPT)
    with pytest.raises(UsageError, match=message):
        subset(root, tmp_path / "out", where=where)
    assert not (tmp_path / "out").exists()


def test_missing_values_and_nan_are_as_in_a_filter(tmp_path) -> None:
    (tmp_path / "sources").mkdir()
    write(tmp_path / "sources/0.parquet", 0)
    every = build_from(tmp_path / "sources", tmp_path / "every", keep_columns=KEPT)
    where = "not score < 2 or language is None"
    filtered = build_from(tmp_path / "sources", tmp_path / "filtered", where=where)
    assert subset(every, tmp_path / "chosen", where=where) == documents_of(filtered)


def test_merged_subsets_can_be_chosen_from(tmp_path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"sources {name}").mkdir()
        write(tmp_path / f"sources {name}/0.parquet", len(name))
        root = build_from(tmp_path / f"sources {name}", tmp_path / name, keep_columns=KEPT)
        subset(root, tmp_path / f"{name} german", where="language == 'de'")
    merged([tmp_path / "one german", tmp_path / "two german"], tmp_path / "both")
    assert subset(tmp_path / "both", tmp_path / "good", where=WHERE) == naive(tmp_path / "both")
