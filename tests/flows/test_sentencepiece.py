"""A SentencePiece model from the command line: made, checked, decoded, read in training."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from streaming_ext import StreamingTextDataset, StreamingTokenDataset
from tests.command_line import refused, succeeded
from tests.tokenizers import train_model

TEXTS = [f"Row {n}: a quick </s> fox\n  jumps over 漢字 and {n * n} dogs." for n in range(120)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with models and some text."""
    made = tmp_path_factory.mktemp("sentencepiece")
    train_model(made / "small.model", model_type="unigram", vocab_size=400, byte_fallback=True)
    train_model(made / "endless.model", model_type="bpe", vocab_size=150, eos_id=-1)
    (made / "broken.model").write_bytes((made / "small.model").read_bytes()[:500])
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (made / "text.jsonl").write_text(lines)
    return made


def test_from_text_to_training(served, shardmill, folder, tmp_path, caplog) -> None:
    """The run, its record and report, the plan and training name the engine that tokenizes."""
    model, text, output = folder / "small.model", folder / "text.jsonl", tmp_path / "out"
    ended = succeeded(
        served.run(
            *("shard", text, "--output", output, "--tokenizer", model, "--sequence-length", 128),
            *("--holdout-fraction", 0, "--workers", 1),
        )
    )
    first = "small.model begins a text with <s>: pass --bos-token '<s>' if the model expects it."
    engine = f"sentencepiece {sentencepiece.__version__}, because "
    assert ended.stderr.count(first) == ended.stderr.count(f"engine: {engine}") == 1
    assert f"engine           {engine}" in ended.stdout
    (record,) = (output / "runs").glob("*.json")
    (report,) = (output / "runs").glob("*.html")
    assert json.loads(record.read_bytes())["engine"].startswith(engine)
    assert engine in report.read_text()
    planned = shardmill("plan", text, "--tokenizer", model, "--sequence-length", 128)
    assert first in planned.stdout, planned.stderr
    assert engine in planned.stdout
    begins = ("--bos-token", "<s>", "--output", tmp_path / "begins")
    options = ("--tokenizer", model, "--sequence-length", 128, *begins)
    shown = shardmill("shard", text, *options, "--dry-run")
    assert re.search(r"beginning +<s> is id 1\n", shown.stdout)
    assert "expects it" not in shown.stdout
    assert (output / "tokenizer/tokenizer.model").read_bytes() == model.read_bytes()
    verified = succeeded(shardmill("verify", output, "--deep", "--json"))
    assert not json.loads(verified.stdout)["findings"]
    shown = shardmill("inspect", output, "--sample", 0)
    assert "Row 0: a quick </s> fox jumps over 漢字 and 0 dogs." in shown.stdout
    traced = shardmill("trace", output, "--step", 0, "--batch-size", 2)
    assert "tokens of row" in traced.stdout, traced.stderr

    library = sentencepiece.SentencePieceProcessor(model_file=str(model))
    ids = [i for text in TEXTS for i in [*library.EncodeAsIds(text), library.eos_id()]]
    ids += [library.eos_id()] * (-len(ids) % 128)
    rank = {"shuffle": False, "batch_size": 1, "dp_rank": 0, "dp_world_size": 1}
    made = StreamingTokenDataset(local=str(output), **rank)
    direct = StreamingTextDataset(
        sources=str(text),
        tokenizer=str(model),
        local=tmp_path / "cache",
        sequence_length=128,
        **rank,
    )
    for dataset in (made, direct):
        assert np.concatenate([row["tokens"] for row in dataset]).tolist() == ids
    told = [
        record.getMessage() for record in caplog.records if record.name.startswith("streaming_ext")
    ]
    assert len(told) == 2
    assert first in told[0]
    assert engine in told[1]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("broken", "sentencepiece cannot read"),
        ("endless", "has no known end-of-text token. Its special tokens: '<s>'. Pass one"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_line(shardmill, folder, tmp_path, model, said) -> None:
    path = folder / f"{model}.model"
    ended = refused(
        shardmill(
            *("shard", folder / "text.jsonl", "--output", tmp_path / "out", "--tokenizer", path),
            "--dry-run",
        )
    )
    (line,) = (line for line in ended.stderr.splitlines() if said in line)
    assert str(path) in line
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out/parts").exists()
