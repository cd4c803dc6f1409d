"""`tokenize` gives the ids of the given tokenizer with any engine."""

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.text.tokenizer.engine import Engine, choose_engine
from streaming_ext.text.tokenizer.json_file import JsonTokenizer
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.transforms import CheckpointableDataset, tokenizers
from streaming_ext.transforms.tokenizers import FastTokenizer, missing_ends
from tests.streaming_ext.transforms.chains import samples_of

Chain = CheckpointableDataset
TEXTS = [
    "Hello world!",
    "",
    "a<|endoftext|>b <pad>",
    "näive 你好 \U00018dbf's",
    "x" * 50,
    " \n\n 1,234",
]


def tokens(dataset: Chain) -> list[list[int]]:
    """Return all tokens in one stream, through arrays alone."""
    return [sample["input_ids"] for sample in samples_of(dataset.chunk(1))]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_workers": 2},
        {"parallel": False},
        {"max_workers": None, "prefetch_factor": 4, "ordered": False, "executor_type": "process"},
    ],
)
def test_own(vocabulary, settings) -> None:
    texts = [{"text": text} for text in TEXTS]
    known = load_tokenizer(str(vocabulary), pattern="gpt2")
    dataset = Chain.from_sequence(texts).tokenize(str(vocabulary), pattern="gpt2", **settings)
    assert samples_of(dataset) == [
        {"text": text, "input_ids": known.encode(text)} for text in TEXTS
    ]
    with pytest.raises(ConfigMismatchError, match="this one is"):
        dataset.iter(Chain.from_sequence(texts).tokenize(known, None, "body").iter().state_dict())
    ended = dataset.ensure_bos_eos(known)
    assert tokens(ended) == [[i] for text in TEXTS for i in [*known.encode(text), known.eot_id]]


def test_an_engine_is_made_while_samples_are_waited_for(vocabulary, monkeypatch) -> None:
    """Two engines are made, since nobody knows which thread has the first texts."""
    engines = threading.Semaphore(0)

    def choose(*of: Any, **settings: Any) -> Engine:
        made = choose_engine(*of, **settings)
        engines.release()
        return made

    class Slow:
        """A source that has its first sample once all engines exist."""

        def __iter__(self) -> Iterator[dict[str, str]]:
            assert all(engines.acquire(timeout=30) for _ in range(2))
            yield from ({"text": text} for text in TEXTS)

    monkeypatch.setattr(tokenizers, "choose_engine", choose)
    dataset = Chain.from_iterable(Slow()).tokenize(str(vocabulary), pattern="gpt2", max_workers=2)
    assert len(samples_of(dataset)) == len(TEXTS)


def test_of_transformers(hub_tokenizer) -> None:
    """Both engines agree on special tokens in a text, and on one that is put before each text."""
    assert FastTokenizer.of(hub_tokenizer) is not None
    dataset = Chain.from_sequence([{"text": text} for text in TEXTS]).tokenize(hub_tokenizer)
    expected = [hub_tokenizer(text) for text in TEXTS]
    assert [s["input_ids"] for s in dataset] == [e["input_ids"] for e in expected]
    assert [s["attention_mask"] for s in dataset] == [e["attention_mask"] for e in expected]
    assert tokens(dataset) == [[i] for e in expected for i in e["input_ids"]]
    short = Chain.from_sequence([{"text": text} for text in TEXTS]).tokenize(
        hub_tokenizer, {"truncation": True, "max_length": 3}
    )
    assert {len(s["input_ids"]) for s in short} <= {1, 2, 3}


def test_a_tokenizer_survives_pickling(tokenizer_json) -> None:
    """Special tokens in a text stay text."""
    own = JsonTokenizer.of(tokenizer_json.encode(), "own")
    again = pickle.loads(pickle.dumps(own))  # noqa: S301 - made here
    assert [again.encode(text) for text in TEXTS] == [own.encode(text) for text in TEXTS]
    assert again.fingerprint == own.fingerprint


def test_ends_that_are_missing(hub_tokenizer) -> None:
    bos, eos = hub_tokenizer.bos_token_id, hub_tokenizer.eos_token_id
    # It begins texts with its eos, which is not its bos: both are missing where they belong.
    assert missing_ends(hub_tokenizer, None) == (bos, eos)


def test_no_tokenizer_and_no_text(hub_tokenizer) -> None:
    with pytest.raises(UsageError, match="must be a name, a file, or a tokenizer of transformers"):
        Chain.from_sequence([]).tokenize(3)
    with pytest.raises(UsageError, match="holds no text: .*'int'"):
        list(Chain.from_sequence([{"text": 3}]).tokenize(hub_tokenizer))
