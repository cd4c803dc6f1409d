"""Vocabularies, documents and what the engines disagree on, made once a session."""

import json
import os
from pathlib import Path

import pytest

from streaming_ext.text.tokenizer import code_points as codepoints
from streaming_ext.text.tokenizer.code_points import UnsafeCodePoints, find_unsafe_code_points
from streaming_ext.text.tokenizer.rank_file import rank_file_bytes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tasks.core.synthetic import make_documents, train_vocabulary

SHARED = Path(os.environ.get("SHARDMILL_SHARED", "/nonexistent"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder with vocab/r50k_base.tiktoken and parquet/*.parquet, where there is one."""
    if not (SHARED / "data/vocab/r50k_base.tiktoken").is_file():
        pytest.skip("SHARDMILL_SHARED names no folder with data/vocab/r50k_base.tiktoken")
    return SHARED / "data"


@pytest.fixture(scope="session")
def documents() -> list[str]:
    return make_documents(300, seed=1)


@pytest.fixture(scope="session")
def rank_path(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "small.tiktoken"
    train_vocabulary(documents, 1024, path)
    return path


@pytest.fixture(scope="session")
def tokenizer(rank_path: Path) -> Tokenizer:
    return load_tokenizer(str(rank_path), pattern="gpt2")


@pytest.fixture(scope="session")
def unsafe(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> UnsafeCodePoints:
    """Of GPT-2's pattern."""
    return find_unsafe_code_points(tokenizer, tmp_path_factory.mktemp("unsafe"))


@pytest.fixture(scope="session", params=["gpt2", "cl100k_base", "o200k_base"])
def sharp(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, UnsafeCodePoints]:
    """A tokenizer of every known pattern that shows each split, and its unsafe code points.

    A trained vocabulary has no merges for rare characters, so that a wrong split changes no id.
    """
    tokens = [*(bytes([byte]) for byte in range(256)), *codepoints._pairs()]
    folder = tmp_path_factory.mktemp("sharp")
    path = folder / "sharp.tiktoken"
    path.write_bytes(rank_file_bytes({token: rank for rank, token in enumerate(tokens)}))
    tokenizer = load_tokenizer(str(path), pattern=request.param)
    return tokenizer, find_unsafe_code_points(tokenizer, folder)


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
