"""Copies that are known while a part is tokenized are not tokenized; the dataset is the same."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.text.tokenizer import engine
from streaming_ext.text.tokenizer.engine import Encoded, ReferenceEngine
from tasks.core.shard import shard_build
from tasks.core.shuffle import known_texts
from tests.tasks.core.build_dataset import file_hashes
from tests.tasks.core.running import do_parts, second_phase


@pytest.fixture
def tokenized(monkeypatch) -> list[str]:
    """All texts that were tokenized."""
    texts: list[str] = []

    class Noting(ReferenceEngine):
        def encode(self, batch: pa.LargeStringArray) -> Encoded:
            texts.extend(batch.to_pylist())
            return super().encode(batch)

    monkeypatch.setattr(engine, "ReferenceEngine", Noting)
    return texts


@pytest.mark.parametrize(
    ("comparison", "filters", "rows"),
    [
        ("exact", {}, 5),
        ("exact", {"min_tokens": 60}, None),
        ("normalized", {}, None),
    ],
)
def test_each_text_is_tokenized_once(
    builder, tokenized, monkeypatch, comparison, filters, rows
) -> None:
    if rows:
        monkeypatch.setattr("streaming_ext.text.readers.json_files.MAX_BATCH_ROWS", rows)
    settings = {"deduplicate": comparison, "keep_columns": (), **filters}
    with monkeypatch.context() as patch:  # no copy is known
        patch.setattr(shard_build, "finds_copies", lambda spec, storage: False)
        whole = builder.build("whole", **settings)
    every = [text for text in tokenized if text]
    assert len(set(every)) < len(every)
    tokenized.clear()
    root = builder.build(**settings)
    assert file_hashes(root) == file_hashes(whole)
    once = [text for text in tokenized if text]
    assert set(once) == set(every)
    if not filters:  # of those that are left out for their tokens nothing is remembered
        assert len(once) == len(set(every))


def test_only_recorded_parts_before_are_known(builder, lines, tokenized) -> None:
    texts = [json.loads(line)["text"] for line in (lines / "0.jsonl").read_text().splitlines()]
    again = {*filter(None, texts)}
    plan, storage = builder.begin()
    do_parts(plan, storage, (2,))
    for part, expected in ((0, True), (1, False)):
        tokenized.clear()
        do_parts(plan, storage, (part,))
        assert bool(again & {*tokenized}) is expected


def test_one_worker_may_do_parts_in_any_order(builder, whole) -> None:
    plan, storage = builder.begin()
    do_parts(plan, storage, (1, 2, 0))
    assert file_hashes(builder.build()) == file_hashes(whole)


def test_a_source_that_changed_beneath_a_copy(builder, lines) -> None:
    sources = shutil.copytree(lines, builder.folder / "sources")
    builder = replace(builder, sources=sources)
    plan, storage = builder.begin()
    do_parts(plan, storage, (0, 1))
    for path in storage.list("shuffle"):
        if path.startswith("shuffle/00000"):
            storage.remove(path)
    (sources / "0.jsonl").write_text('{"text": "another text"}\n')
    plan, storage = builder.begin()
    assert plan.todo == (0, 2)
    do_parts(plan, storage)
    with pytest.raises(CorruptDatasetError, match="a source changed during the run. Remove"):
        do_parts(second_phase(plan, storage), storage)


def test_what_is_remembered_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(known_texts, "MOST_KNOWN", 1000)
    drawn = np.random.default_rng(0)
    keys = drawn.integers(0, 2**64, (2000, 2), np.uint64)
    tokens = drawn.integers(1, 2**24 - 1, 2000)
    table, end = known_texts._Table(), 0
    while not table.full:
        begin, end = end, end + int(drawn.integers(1, 40))
        table.add(keys[begin:end], tokens[begin:end])
        assert len(table._chunks) <= 10
    assert table.tokens_of(keys[:end]).tolist() == tokens[:end].tolist()
    for _ in range(2):  # what is added then is not remembered
        assert table.tokens_of(keys[end:]).max() == -1
        table.add(keys[end:], tokens[end:])
