"""Vocabularies and documents, made once per session, and helpers that load tokenizers."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.rank_file import rank_file_bytes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.synthetic import make_documents

SHARED = Path(os.environ.get("SHARDMILL_SHARED", "/nonexistent"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder with vocab/r50k_base.tiktoken and parquet/*.parquet; skips the test without one."""
    if not (SHARED / "data/vocab/r50k_base.tiktoken").is_file():
        pytest.skip("SHARDMILL_SHARED names no folder with data/vocab/r50k_base.tiktoken")
    return SHARED / "data"


@pytest.fixture(scope="session")
def documents() -> list[str]:
    return make_documents(300, seed=1)


@pytest.fixture(scope="session")
def tokenizer(vocabulary: Path) -> Tokenizer:
    return load_tokenizer(str(vocabulary), pattern="gpt2")


@pytest.fixture(scope="session")
def tokenizer_json(documents: list[str]) -> str:
    """A byte-level tokenizer.json with `<|endoftext|>` as its special token."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<pad>"],
    )
    model.train_from_iterator(documents[:50], trainer)
    return json.dumps(json.loads(model.to_str()))


BYTES = {bytes([byte]): byte for byte in range(256)}
RANKS = {**BYTES, b"he": 256, b"ll": 257, b"hell": 258}


def write_ranks(path: Path, ranks: dict[bytes, int]) -> str:
    path.write_bytes(rank_file_bytes(ranks))
    return str(path)


def load_ranks(path: Path, ranks: dict[bytes, int] = RANKS, **options: Any) -> Tokenizer:
    return load_tokenizer(write_ranks(path, ranks), **options)


def load_json(path: Path, text: str, *, eot_token: str | None = None, **changes: Any) -> Tokenizer:
    """Load a tokenizer.json after replacing some of its entries."""
    path.write_text(json.dumps({**json.loads(text), **changes}))
    return load_tokenizer(str(path), eot_token=eot_token)


def train_model(path: Path, **options: Any) -> str:
    """Train a SentencePiece model on made-up text."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(
            f"Line {n}: the quick brown fox jumps over {n * n} lazy dogs, naïve façade."
            for n in range(500)
        ),
        model_writer=writer,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    path.write_bytes(writer.getvalue())
    return str(path)
