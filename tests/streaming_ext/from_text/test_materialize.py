"""A dataset made of a text has its rows in its order, and training goes on there."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from streaming_ext import StreamingTextDataset, StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.errors import ConfigMismatchError, UsageError
from streaming_ext.text.listing import list_sources
from streaming_ext.text.tokenizer.engine import ReferenceEngine
from streaming_ext.text.tokenizer.tokenizer import open_saved
from streaming_ext.training import materialize
from tasks.core.config import ShardConfig
from tasks.core.outputs.publish import publish
from tasks.core.planning.plan import make_plan
from tasks.core.storage import open_storage
from tasks.core.workers.tokenize_part import TokenizeJob, tokenize_part
from tasks.core.workers.write_part import WriteJob, write_part
from tests.streaming_ext.from_text.conftest import LENGTH, Open, write_lines


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def shard(told: dict[str, Any]) -> None:
    """Make a dataset in this process, of the parts that `shardmill shard` makes."""
    config = ShardConfig.model_validate(told)
    storage = open_storage(config.output)
    storage.create()
    sources = tuple(list_sources(config.sources))
    plan = make_plan(config, storage, sources)
    tokenizer = open_saved(plan.tokenizer_folder)
    for part in plan.parts:
        scratch, output = str(plan.part_scratch(part.number)), str(storage)
        job = TokenizeJob(part=part, scratch=scratch, tokenizer_folder="not used",
                          engine="reference", spec=plan.spec)  # fmt: skip
        tokenize_part(job, tokenizer, ReferenceEngine(tokenizer))
        write_part(WriteJob(part=part, scratch=scratch, output=output, spec=plan.spec), storage)
    publish(plan, storage)


def made_by_the_command(text: StreamingTextDataset, output: Path) -> None:
    text.materialize(output, workers=1)


def made_here(text: StreamingTextDataset, output: Path) -> None:
    (stream,), (cache,) = text.streams, text.reader.caches
    shard(materialize.config_of(stream, cache, str(output), workers=1))


@pytest.mark.parametrize(
    ("make", "packing"),
    [(made_here, None), (made_here, "best_fit"),
     pytest.param(made_by_the_command, None, marks=pytest.mark.soak)],
)  # fmt: skip
def test_training_goes_on_from_a_dataset_made_of_the_text(
    open_text: Open, texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make, packing
) -> None:
    """Large files cut, small ones together: several parts, of pieces and of files."""
    files = tmp_path / "files"
    files.mkdir()
    write_lines(files / "a.jsonl", texts[0])
    for number in range(6):
        write_lines(files / f"b{number}.jsonl", texts[1][5 * number : 5 * number + 5])
    settings = {"sources": str(files / "*.jsonl"), "local": tmp_path / "cache", "part_size": 7000,
                "min_part_size": 2000, "holdout_fraction": 0.05, "packing": packing}  # fmt: skip
    text = open_text(**settings)
    theirs = tmp_path / "theirs"
    (theirs / "flows").mkdir(parents=True)
    (theirs / "flows/__init__.py").write_text("raise SystemExit('not part of shardmill')")
    monkeypatch.chdir(theirs)
    make(text, tmp_path / "made")

    def from_dataset() -> StreamingTokenLoader:
        return StreamingTokenLoader(
            StreamingTokenDataset(local=tmp_path / "made", batch_size=4, shuffle=True,
                                  shuffle_block_size=50, dp_rank=0, dp_world_size=1,
                                  packing=packing)
        )  # fmt: skip

    loader = StreamingTokenLoader(text)
    whole = [batch["tokens"] for batch in loader]
    assert len(whole) > 40
    assert equal(whole, [batch["tokens"] for batch in from_dataset()])
    loader = StreamingTokenLoader(open_text(**settings))
    for step, _ in enumerate(loader):
        if step == 16:
            state = json.loads(json.dumps(loader.state_dict()))
            break
    going_on = from_dataset()
    going_on.load_state_dict(state)
    assert equal(whole[17:], [batch["tokens"] for batch in going_on])
    assert not going_on.state_dict()["streams"][0]["fingerprint"].startswith("text:")

    write_lines(files / "a.jsonl", [*texts[0], "more"])
    other = StreamingTokenLoader(open_text(**settings)).state_dict()
    with pytest.raises(ConfigMismatchError):
        from_dataset().load_state_dict(other)


def test_without_prefect(open_text: Open, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "prefect", None)
    monkeypatch.setattr(materialize, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs Prefect: pip install 'shardmill\[flow\]'"):
        open_text().materialize(tmp_path)


def test_the_configuration_names_all_that_decides(open_text: Open) -> None:
    dataset = open_text(text_column=("text", "title"), min_tokens=2)
    (stream,), (cache,) = dataset.streams, dataset.reader.caches
    told = materialize.config_of(stream, cache, "out", workers=None)
    config = ShardConfig.model_validate(told)
    assert config.spec(cache.index.spec.tokenizer) == cache.index.spec
    assert config.sequence_length == LENGTH
