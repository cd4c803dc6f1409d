"""Texts whose words are encoded once have the ids of the reference."""

import json
import os
import random
import re
import unicodedata
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from streaming_ext.text.tokenizer import word_ids
from streaming_ext.text.tokenizer.engine import (
    ReferenceEngine,
    WordEngine,
    choose_engine,
    in_words,
)
from streaming_ext.text.tokenizer.json_file import JsonTokenizer, one_thread_each
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.word_ids import WordIds, splits_at_spaces
from tests.streaming_ext.text.tokenizer.trial import hard_texts

END = "<|endoftext|>"
PLAIN = [chr(p) for p in range(0x600) if re.match(f"[{word_ids._PLAIN}]", chr(p))]
# Like T5, XLM-R and mT5; BERT; Claude; CLIP; SmolLM and StarCoder; Falcon.
KINDS: dict[str, tuple[Any, Any, Any, Any]] = {
    "unigram": (
        models.Unigram,
        trainers.UnigramTrainer,
        [
            normalizers.NFKC(),
            normalizers.Strip(left=False),
            normalizers.Replace(Regex(" {2,}"), "▁"),
        ],
        pre_tokenizers.Metaspace(),
    ),
    "first": (
        models.Unigram,
        trainers.UnigramTrainer,
        [normalizers.Nmt(), normalizers.Replace("``", '"')],
        pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]
        ),
    ),
    "wordpiece": (
        models.WordPiece,
        trainers.WordPieceTrainer,
        [normalizers.BertNormalizer()],
        pre_tokenizers.BertPreTokenizer(),
    ),
    "byte_level": (
        models.BPE,
        trainers.BpeTrainer,
        [normalizers.NFKC()],
        pre_tokenizers.ByteLevel(add_prefix_space=True),
    ),
    "suffix": (
        lambda **given: models.BPE(end_of_word_suffix="</w>", **given),
        lambda **given: trainers.BpeTrainer(end_of_word_suffix="</w>", **given),
        [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()],
        pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits()]),
    ),
    "digits": (
        models.BPE,
        trainers.BpeTrainer,
        [],
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        ),
    ),
    "punctuation": (
        models.BPE,
        trainers.BpeTrainer,
        [],
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Punctuation("contiguous"),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
                pre_tokenizers.Digits(),
                pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
            ]
        ),
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request, tmp_path_factory) -> JsonTokenizer:
    model, trainer, normalizer, pre_tokenizer = KINDS[request.param]
    made = Tokenizer(model() if model is models.Unigram else model(unk_token="[UNK]"))
    made.normalizer = normalizers.Sequence(normalizer)
    made.pre_tokenizer = pre_tokenizer
    special = {"special_tokens": ["[UNK]"], "show_progress": False}
    if model is models.Unigram:
        special["unk_token"] = "[UNK]"
    texts = [*hard_texts(random.Random(0), 300, ["the end of text", "ends"]), *PLAIN]
    made.train_from_iterator(texts, trainer(vocab_size=4000, **special))
    made.add_special_tokens([END])  # in a Unigram vocabulary, a text would give it
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    found = load_tokenizer(str(path))
    assert isinstance(found, JsonTokenizer)
    return found


def check(tokenizer: JsonTokenizer, engine: WordEngine, texts: list[str]) -> None:
    array = pa.array(texts, pa.large_string())
    encoded = engine.encode(array)
    expected = ReferenceEngine(tokenizer).encode(array)
    assert encoded.ids.tolist() == expected.ids.tolist()
    assert encoded.offsets.tolist() == expected.offsets.tolist()


def test_they_are_chosen_and_equal_the_reference(tokenizer: JsonTokenizer, monkeypatch) -> None:
    engine = choose_engine(tokenizer, engine="auto")
    assert isinstance(engine, WordEngine)
    assert "word by word, because " in in_words(engine)
    rng = random.Random(1)
    texts = [*hard_texts(rng, 1500, [END, "<|end", "``", "▁"]), "", " ", "a", " a b ", "a  b c"]
    # Hard texts side by side have a space between any two of them.
    texts += [" ".join(rng.choices(texts, k=6)) for _ in range(300)]
    check(tokenizer, engine, texts)
    check(tokenizer, engine, texts[::-1])
    assert len(engine._ids._known) > 1000
    monkeypatch.setattr(word_ids, "MAX_BYTES", 1)
    check(tokenizer, engine, [*texts[:20], "one more word"])
    assert len(engine._ids._known) < 1000
    assert isinstance(choose_engine(tokenizer, engine="reference"), ReferenceEngine)


def test_every_character_at_a_cut(tokenizer: JsonTokenizer) -> None:
    engine = WordEngine(tokenizer, "")
    texts = [
        form.replace("{}", char) for char in PLAIN for form in ("a{} {}b", "{} {} {}", "1 {}1")
    ]
    check(tokenizer, engine, texts)


def test_batches_in_one_thread_give_the_same_ids(tokenizer: JsonTokenizer) -> None:
    """Special tokens remain text, and the environment of a process that may fork is restored."""
    texts = [*hard_texts(random.Random(3), 500, [END, "[UNK]"]), "", END, f"a{END} {END}", "b" * 99]
    plain = [tokenizer.encode(text) for text in texts]
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    with one_thread_each():
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
        assert tokenizer.encode_all(texts) == plain
    assert os.environ.get("TOKENIZERS_PARALLELISM") == before
    assert not any(tokenizer.eot_id in ids for ids in plain)


def test_no_character_at_a_cut_is_a_mark_or_becomes_a_space() -> None:
    assert len(PLAIN) > 700
    for char in PLAIN:
        assert not unicodedata.combining(char)
        assert unicodedata.category(char)[0] != "M", hex(ord(char))
        for form in ("NFC", "NFD", "NFKC", "NFKD"):
            assert not any(map(str.isspace, unicodedata.normalize(form, char))), hex(ord(char))


def test_each_word_is_encoded_once(tokenizer: JsonTokenizer, monkeypatch) -> None:
    asked: list[str] = []
    encode_all = JsonTokenizer.encode_all

    def noting(self: JsonTokenizer, texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return encode_all(self, texts)

    monkeypatch.setattr(JsonTokenizer, "encode_all", noting)
    ids = WordIds(tokenizer)
    ids.encode(["to be or not to be", "to be"])
    assert sorted(asked) == sorted(["to", "to", " be", " or", " not", " to"])
    ids.encode(["let it be"])
    assert sorted(asked[6:]) == [" it", "let"]


def test_others_are_encoded_as_a_whole(tokenizer: JsonTokenizer) -> None:
    config = json.loads(tokenizer.data)
    assert splits_at_spaces(config)
    of_spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "_"}
    changes: list[dict[str, Any]] = [
        {"normalizer": {"type": "Prepend", "prepend": "▁"}},
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": of_spaces},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, of_spaces]}},
        {"normalizer": {**of_spaces, "pattern": {"Regex": "a b"}}},
        # "a x x b" becomes "a" and a run of spaces, which pre-tokenizers split in another way.
        *(
            {"normalizer": {**of_spaces, "pattern": {"String": "x"}, "content": content}}
            for content in ("", " ", "\u0301")
        ),
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Punctuation", "behavior": "Isolated"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}},
        {"pre_tokenizer": {"type": "Metaspace", "split": False}},
        {"added_tokens": [{**config["added_tokens"][1], "special": False}]},
    ]
    for change in changes:
        assert not splits_at_spaces({**config, **change}), change
