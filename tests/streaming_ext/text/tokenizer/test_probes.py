"""Texts with their ids, by which a dataset recognizes its tokenizer in any form."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tokenizers
import transformers

from streaming_ext.base.errors import UsageError
from streaming_ext.format.spec import TokenizerIdentity
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.probes import difference, probe_texts, probes_of
from streaming_ext.text.tokenizer.tokenizer import Tokenizer

EOT = "<|endoftext|>"


@pytest.fixture(scope="module")
def file(tmp_path_factory, tokenizer_json) -> Path:
    path: Path = tmp_path_factory.mktemp("json") / "tokenizer.json"
    path.write_text(tokenizer_json)
    return path


@pytest.fixture(scope="module")
def own(file) -> Tokenizer:
    return load_tokenizer(str(file))


def compared(own: Tokenizer, given: Any) -> str:
    """Compare a tokenizer with one of Shardmill's own that made a dataset."""
    identity = TokenizerIdentity.model_validate(own.description())
    probes = dict(json.loads(probes_of(own))["probes"])
    return difference(probes, given, identity, "data")


def of_transformers(file: Path) -> Any:
    """Return a tokenizer in whose texts special tokens are special, unless it is set otherwise."""
    made = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token=EOT)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    return made


def test_the_texts() -> None:
    texts = probe_texts()
    assert 150 < len({*texts}) == len(texts) < 250
    assert max(map(len, texts)) < 120
    assert "Cn" not in {unicodedata.category(letter) for text in texts for letter in text}
    for needed in (
        " ",
        "\t",
        "\r\n",
        "a    b",
        "你好",
        "Привет",
        EOT,
        "<|im_start|>",
        "1234567890",
    ):
        assert any(needed in text for text in texts), needed


def test_the_same_tokenizer_in_every_form(own, file, vocabulary, tokenizer) -> None:
    hub = of_transformers(file)
    for given in (own, file, str(file), hub, tokenizers.Tokenizer.from_file(str(file))):
        assert compared(own, given) == "", type(given)
    assert hub.encode("<|im_start|>") == [len(hub) - 1]  # its own settings are restored
    assert not hub.backend_tokenizer.encode_special_tokens
    for given in (str(vocabulary), tokenizer.encoding):  # the file itself names no pattern
        assert compared(tokenizer, given) == "", type(given)
    begins = load_tokenizer(str(file), bos_token="<pad>")
    for given in (begins, file, hub, tokenizers.Tokenizer.from_file(str(file))):
        assert compared(begins, given) == "", type(given)


def test_an_object_of_someone_elses(own) -> None:
    class Wrapped:
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return ([7] if add_special_tokens else []) + own.encode(text)

    assert compared(own, Wrapped()) == ""


def test_the_first_text_that_differs_is_named(own, tokenizer) -> None:
    words = compared(own, tokenizer)
    first, ids = probe_texts()[0], tokenizer.encode(probe_texts()[0])
    assert words.startswith(
        f"{tokenizer.name} is not the tokenizer of data: for {first!r} it gives"
    )
    assert f"it gives {ids}, the dataset has {own.encode(first)}. " in words
    assert words.endswith(f" of {len(probe_texts())} texts differ.")


def test_a_lost_merge_is_seen(own, file, tmp_path) -> None:
    config = json.loads(file.read_text())
    del config["model"]["merges"][0]
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    assert "texts differ." in compared(own, tmp_path / "tokenizer.json")


def test_another_id_of_the_end_of_text(own, file) -> None:
    hub = of_transformers(file)
    hub.convert_tokens_to_ids = lambda token: 5
    assert compared(own, hub) == (
        f"{type(hub).__name__} is not the tokenizer of data: {EOT} has the id 5 in it, the "
        f"dataset has {own.eot_id}."
    )


def test_an_encoding_with_another_id_of_the_end_of_text(tokenizer) -> None:
    for special, id_ in (({EOT: 70_000}, 70_000), ({}, None)):
        given = tiktoken.Encoding(
            "x",
            pat_str=tokenizer.pattern,
            mergeable_ranks=tokenizer.ranks,
            special_tokens=special,
        )
        assert f"x is not the tokenizer of data: {EOT} has the id {id_} in it" in compared(
            tokenizer, given
        )


@pytest.mark.parametrize("given", [5, object(), type("X", (), {"encode": lambda self, text: []})()])
def test_what_is_no_tokenizer(own, given) -> None:
    with pytest.raises(UsageError, match=r"`tokenizer` must be a name, a file, or an object"):
        compared(own, given)


@pytest.mark.parametrize("given", ["gtp2", "/nowhere/tokenizer.json"])
def test_what_cannot_be_loaded(own, given) -> None:
    with pytest.raises(UsageError, match=r"Did you mean gpt2|No such file"):
        compared(own, given)
