"""The cached dataset equals that of `shardmill shard`; training resumes on it and on copies."""

import gzip
import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from tests.servers.storage.swift import make_bucket
from tests.streaming_ext.conftest import tokens_of
from tests.streaming_ext.training.from_text.conftest import (
    LENGTH,
    files_of,
    kill_before_rename,
    write_lines,
)
from tests.tasks.core.build_dataset import build_from


@pytest.fixture
def files(texts, tmp_path: Path) -> Path:
    """Large files that are cut, small ones that are joined, and some that cannot be cut."""
    folder = tmp_path / "files"
    folder.mkdir()
    write_lines(folder / "a.jsonl", texts[0])
    for number in range(6):
        write_lines(folder / f"b{number}.jsonl", texts[1][5 * number : 5 * number + 5])
    lines = b'{"text": "one text of several more words than all others", "lang": "de"}\n' * 9
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "d.json").write_text(json.dumps([{"text": text} for text in texts[1]]))
    pq.write_table(pa.table({"text": texts[2]}), folder / "e.parquet", row_group_size=7)
    return folder


SIZES: dict[str, Any] = {
    "part_size": 7000,
    "min_part_size": 2000,
    "shard_size": 2000,
    "holdout_fraction": 0.05,
    "min_tokens": 10,
    "keep_columns": "lang",
}


@pytest.mark.parametrize("packing", [None, "best_fit"])
def test_training_resumes_in_the_dataset_of_shard_and_in_a_copy(
    open_text, open_raw, files, texts, vocabulary, tmp_path, packing
) -> None:
    settings = {"sources": str(files), "local": tmp_path / "cache", "packing": packing, **SIZES}
    text = open_text(**settings)
    made = build_from(
        files, tmp_path / "shard", tokenizer=str(vocabulary), sequence_length=LENGTH, **SIZES
    )
    (cached,) = (tmp_path / "cache").iterdir()
    assert files_of(cached) == files_of(made)
    text.materialize(tmp_path / "copy")
    assert files_of(tmp_path / "copy") == files_of(made)

    held_out = [
        open_text(split="holdout", **settings),
        open_raw(local=made, split="holdout", packing=packing),
    ]
    assert tokens_of(held_out[0]) == tokens_of(held_out[1]) != []
    expected = tokens_of(text)
    assert len(expected) > 40
    loader = StreamingTokenLoader(open_text(**settings))
    list(islice(loader, 17))
    state = json.loads(json.dumps(loader.state_dict()))
    moved = shutil.copytree(files, tmp_path / "moved")  # other times, the same content
    datasets = [open_raw(local=root, packing=packing) for root in (made, tmp_path / "copy")]
    datasets.append(open_text(**settings | {"sources": str(moved)}))
    shutil.rmtree(moved)  # it is not read any more
    for dataset in datasets:
        resumed = StreamingTokenLoader(dataset, num_workers=2)
        resumed.load_state_dict(state)
        assert tokens_of(resumed) == expected[17:]

    write_lines(files / "a.jsonl", [*texts[0], "more of it " * 9])
    other = open_text(**settings).state_dict()
    with pytest.raises(ConfigMismatchError, match="streams"):
        open_raw(local=made, packing=packing).load_state_dict(other)


def test_a_copy_that_was_killed_resumes(open_text, files, tmp_path) -> None:
    text = open_text(sources=str(files), local=tmp_path / "cache", **SIZES)

    kill_before_rename(9, lambda: text.materialize(tmp_path / "copy"))
    assert not (tmp_path / "copy/manifest.json").exists()
    text.materialize(tmp_path / "copy")
    text.materialize(tmp_path / "copy")
    (cached,) = (tmp_path / "cache").iterdir()
    assert files_of(tmp_path / "copy") == files_of(cached)
    with pytest.raises(UsageError, match="holds another dataset"):
        open_text(local=tmp_path / "cache").materialize(tmp_path / "copy")


def test_a_copy_in_object_storage(open_text, open_raw, files, s3, tmp_path) -> None:
    text = open_text(sources=str(files), local=tmp_path / "cache", **SIZES)
    url = f"s3://{make_bucket(s3.url)}/copy"
    text.materialize(url)
    assert tokens_of(open_raw(remote=url, local=tmp_path / "read")) == tokens_of(text)


def test_several_texts_have_no_copy(open_text, tmp_path) -> None:
    text = open_text()
    text.streams *= 2
    with pytest.raises(UsageError, match="of one text"):
        text.materialize(tmp_path / "copy")
