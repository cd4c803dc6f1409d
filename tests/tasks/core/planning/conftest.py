"""A vocabulary, a few sources, and what to make of them."""

from pathlib import Path

import pytest

from streaming_ext.text.tokenizer.rank_file import rank_file_bytes
from tasks.core.config import ShardConfig
from tests.tasks.core.doubles import write_source

NUM_SOURCES = 4


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """A vocabulary of the 256 bytes."""
    path = tmp_path / "bytes.tiktoken"
    path.write_bytes(rank_file_bytes({bytes([byte]): byte for byte in range(256)}))
    return path


@pytest.fixture
def config(tmp_path: Path, ranks: Path) -> ShardConfig:
    for number in range(NUM_SOURCES):
        texts: list[str | None] = [f"{number} {row}" for row in range(10)]
        write_source(tmp_path / f"sources/{number}.parquet", texts)
    return ShardConfig(
        sources=(str(tmp_path / "sources"),),
        output=str(tmp_path / "out"),
        tokenizer=str(ranks),
        pattern="gpt2",
        sequence_length=8,
        holdout_fraction=0.3,
        shard_size=1024,
        engine="reference",
        workers=1,
    )
