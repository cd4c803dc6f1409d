"""`shardmill check-tokenizer` as a user runs it."""

import json
import re

import pytest

import shardmill as functions
from streaming_ext.base.errors import ConfigMismatchError
from tests.command_line import succeeded


def test_the_same_and_another(shardmill, dataset, vocabulary, tokenizer_json, tmp_path) -> None:
    command = "check-tokenizer", dataset
    ended = succeeded(shardmill(*command, vocabulary))
    assert ended.stdout.startswith(f"{vocabulary} gives the ids of {dataset} for 1")
    other = tmp_path / "tokenizer.json"
    other.write_text(tokenizer_json)
    ended = shardmill(*command, other)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"shardmill: {other} is not the tokenizer of {dataset}: for 'H")
    lacking = tmp_path / "lacking.json"
    lacking.write_text(tokenizer_json.replace("<|endoftext|>", "<end>"))
    ended = shardmill(*command, lacking)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.endswith(": it lacks the token that ends each document, '<|endoftext|>'.\n")
    ended = shardmill(*command, other, "--json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["same"]) == (1, False)
    assert functions.check_tokenizer(str(dataset), str(vocabulary)).same
    with pytest.raises(ConfigMismatchError, match=re.escape(found["difference"])):
        functions.check_tokenizer(str(dataset), str(other))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "DATASET is missing"),
        (["nowhere", "gpt2"], "nowhere is no dataset"),
        ([None, "gtp2"], "Did you mean gpt2?"),
        ([None, "/nowhere/tokenizer.json"], "No such file"),
    ],
)
def test_wrong_usage(shardmill, dataset, tmp_path, monkeypatch, words, said) -> None:
    monkeypatch.chdir(tmp_path)
    ended = shardmill("check-tokenizer", *(word or dataset for word in words))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
