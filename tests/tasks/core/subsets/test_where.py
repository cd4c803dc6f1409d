"""Documents chosen by their columns are those that a loop over the sources chooses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import UsageError
from streaming_ext.store import open_storage
from tasks.core.reading.documents import PartOfDataset
from tests.tasks.core.build_dataset import build_from, manifest_of, require_sound
from tests.tasks.core.moving.moved import copied, merged
from tests.tasks.core.subsets.with_columns import Document, documents_of, made, subset


def holds(score: float | None, language: str | None) -> bool:
    return score is not None and score >= 1 and language == "de"


def naive(dataset: Path, choose: Callable[..., bool] = holds) -> list[Document]:
    """Return the documents that a function chooses by score and language of their rows."""
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


def stream_of(root: Path) -> list[int]:
    """Return the tokens of all documents of `train`, one after the other."""
    storage = open_storage(str(root))
    manifest = manifest_of(root)
    blocks = (
        block
        for part in range(len(manifest.parts))
        for block in PartOfDataset(storage, manifest, part).documents("train")
    )
    return [token for block in blocks for token in block.stream.tolist()]


def test_training_on_them_reads_what_the_subset_holds(dataset, tmp_path) -> None:
    subset(dataset, tmp_path / "german", where=WHERE)
    tokens = stream_of(tmp_path / "german")
    rows = StreamingTokenLoader(
        StreamingTokenDataset(
            streams=[TokenStream(local=dataset, where=WHERE)],
            batch_size=1,
            sequence_length=16,
            dp_rank=0,
            dp_world_size=1,
        )
    )
    found = [token for batch in rows for token in batch["tokens"][0].tolist()]
    assert found == tokens[: len(tokens) // 16 * 16]
    assert len(found) > 99


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
    """The condition applies first; a draw of fewer documents is part of a draw of more."""
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


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("scor > 1", r"has no column 'scor'; its documents have score, language, tokens, source"),
        ("language > 1", r"00000\.parquet: column 'language' is of type large_string, and --where"),
        ("score > 99", "--where 'score > 99' holds for no document of"),
    ],
)
def test_conditions_that_fit_no_document_are_refused(tmp_path, where, message) -> None:
    root = made(tmp_path, 0)
    with pytest.raises(UsageError, match=message):
        subset(root, tmp_path / "out", where=where)
    assert not (tmp_path / "out").exists()


def test_missing_values_and_nan_are_as_in_a_filter(tmp_path) -> None:
    every = made(tmp_path, 0)
    where = "not score < 2 or language is None"
    filtered = build_from(tmp_path / "sources", tmp_path / "filtered", where=where)
    assert subset(every, tmp_path / "chosen", where=where) == documents_of(filtered)


def test_merged_subsets_can_be_chosen_from(tmp_path) -> None:
    for name in ("one", "two"):
        subset(
            made(tmp_path / name, len(name)), tmp_path / f"{name} german", where="language == 'de'"
        )
    merged([tmp_path / "one german", tmp_path / "two german"], tmp_path / "both")
    assert subset(tmp_path / "both", tmp_path / "good", where=WHERE) == naive(tmp_path / "both")
