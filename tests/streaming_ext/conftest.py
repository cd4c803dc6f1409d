"""Datasets that many tests read."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from tests.servers.storage.swift import SwiftServer, make_bucket, s3_client
from tests.streaming_ext.build import Built, build_some


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Compressed shards: 3 parts, 116 shards of 4 samples of 8 tokens, 585 train samples."""
    root = tmp_path_factory.mktemp("packed") / "dataset"
    return build_some(root, 300)


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The same documents in uncompressed shards."""
    root = tmp_path_factory.mktemp("raw") / "dataset"
    return build_some(root, 300, compression="none")


@pytest.fixture(scope="session")
def published(swift: SwiftServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, str]:
    """A small dataset of compressed shards, on disk and in a bucket, with its URL."""
    root = tmp_path_factory.mktemp("published") / "dataset"
    built = build_some(root, 60)
    bucket = make_bucket(swift.url)
    client = s3_client(swift.url)
    for path in sorted(root.rglob("*.*")):
        client.put_object(Bucket=bucket, Key=f"a/{path.relative_to(root)}", Body=path.read_bytes())
    client.close()
    return built, f"s3://{bucket}/a"


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Built], Path]:
    """A copy of a dataset that a test may damage."""

    def make(built: Built) -> Path:
        target = tmp_path / "copy"
        shutil.copytree(built.root, target, ignore=shutil.ignore_patterns(".unpacked"))
        return target

    return make


@pytest.fixture
def open_raw(raw: Built) -> Callable[..., StreamingTokenDataset]:
    """Open the raw dataset as one rank, shuffled by default."""

    def make(**changes: Any) -> StreamingTokenDataset:
        settings: dict[str, Any] = {
            "local": raw.root,
            "batch_size": 4,
            "shuffle": True,
            "shuffle_block_size": 50,
            "dp_rank": 0,
            "dp_world_size": 1,
            "extras": ["sequence_ids"],
        }
        return StreamingTokenDataset(**(settings | changes))

    return make


@pytest.fixture
def load(open_raw: Callable[..., StreamingTokenDataset]) -> Callable[..., StreamingTokenLoader]:
    """Load the raw dataset as one rank, shuffled by default."""

    def make(*, num_workers: int = 0, **changes: Any) -> StreamingTokenLoader:
        return StreamingTokenLoader(open_raw(**changes), num_workers=num_workers)

    return make


@pytest.fixture
def open_cached(
    packed: Built, open_raw: Callable[..., StreamingTokenDataset], tmp_path: Path
) -> Callable[..., StreamingTokenDataset]:
    """Open the compressed dataset in the same way, through a cache."""
    return lambda **changes: open_raw(
        **{"remote": str(packed.root), "local": tmp_path / "cache"} | changes
    )


def tokens_of(batches: Iterable[Any]) -> list[Any]:
    """Return the tokens of some batches, or of an epoch of a dataset."""
    if isinstance(batches, StreamingTokenDataset):
        batches = StreamingTokenLoader(batches)
    return [batch["tokens"].tolist() for batch in batches]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests start more workers than the machine has cores, without torch's warning."""
    for item in items:
        if "streaming_ext" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore:This DataLoader will create"))
