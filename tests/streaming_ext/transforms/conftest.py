"""Files of JSON Lines that are read in small spans, and tokenizers for them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streaming_ext.transforms import files
from tasks.core.synthetic import make_documents

SPAN = 1_500  # bytes: small, for several spans


@pytest.fixture
def small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SPAN_BYTES", SPAN)


@pytest.fixture(scope="session")
def records() -> list[list[dict[str, Any]]]:
    """The documents of each file."""
    made = make_documents(40, seed=5)
    all_ = [{"id": n, "text": text[: 20 + 7 * n % 300]} for n, text in enumerate(made)]
    return [all_[:20], all_[20:23], all_[23:]]


@pytest.fixture(scope="session")
def folder(records: list[list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    for number, documents in enumerate(records):
        write_lines(root / f"{number}.jsonl", documents)
    return root


@pytest.fixture(scope="session")
def hub_tokenizer(tokenizer_json: str) -> Any:
    """A transformers tokenizer that puts a token before every text."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    backend = tokenizers.Tokenizer.from_str(tokenizer_json)
    end = backend.token_to_id("<|endoftext|>")
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", end)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|endoftext|>", bos_token="<pad>"
    )


def write_lines(path: Path, documents: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in documents))
