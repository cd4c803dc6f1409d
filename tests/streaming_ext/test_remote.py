"""Reading from S3 with its real client: what comes, and the true reason when nothing does."""

import time
from typing import Any

import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.errors import (
    CorruptDatasetError,
    NotADatasetError,
    StorageError,
    TransientStorageError,
)
from streaming_ext.remote import FileMissingError, Remote, within
from tests.streaming_ext.s3_server import s3_server

pytest.importorskip("s3fs")


@pytest.fixture
def server(packed) -> Any:
    with s3_server(packed.root) as running:
        yield running


@pytest.fixture
def open_s3(server, tmp_path) -> Any:
    def make(**changes: Any) -> StreamingTokenDataset:
        settings = {
            "remote": "s3://bucket", "local": tmp_path, "batch_size": 4, "shuffle": True,
            "shuffle_block_size": 50, "storage_options": server.options, "dp_rank": 0,
            "dp_world_size": 1, "download_timeout": 30, "extras": ["sequence_ids"],
        }  # fmt: skip
        return StreamingTokenDataset(**(settings | changes))

    return make


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_from_s3(open_s3, open_raw, server, workers) -> None:
    expected = [b["tokens"].tolist() for b in StreamingTokenLoader(open_raw())]
    loader = StreamingTokenLoader(open_s3(), num_workers=workers)
    assert [batch["tokens"].tolist() for batch in loader] == expected
    asked = server.requests
    # manifest, index, and each shard once for all threads and workers
    assert asked == 2 + loader.dataset.reader.num_shards
    again = StreamingTokenLoader(open_s3(), num_workers=workers)
    assert [batch["tokens"].tolist() for batch in again] == expected
    assert not [path for path in server.asked[asked:] if "shard" in path]  # all from the cache


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("refused", StorageError, "access is refused.*credentials"),
        ("forbidden", StorageError, "access is refused"),
        ("busy", TransientStorageError, "cannot be read"),
        ("broken", TransientStorageError, "cannot be read"),
        ("odd", TransientStorageError, "cannot be read"),
        ("cut", TransientStorageError, "cannot be read"),
        ("stuck", TransientStorageError, "did not come within"),
        ("no bucket", CorruptDatasetError, "missing"),
    ],
)
def test_failures_say_what_they_are(open_s3, server, mode, error, words) -> None:
    dataset = open_s3(download_timeout=3 if mode == "stuck" else 15)
    loader = StreamingTokenLoader(dataset, num_workers=int(mode == "busy"))
    server.mode, started = mode, time.monotonic()
    with pytest.raises(error, match=rf"(?s){words}"):
        next(iter(loader))
    assert time.monotonic() - started < 25
    server.mode = "fine"
    assert next(iter(StreamingTokenLoader(open_s3())))


@pytest.mark.parametrize("mode", ["busy", "broken", "cut"])
def test_what_passes_is_tried_again(open_s3, server, mode) -> None:
    dataset = open_s3(download_timeout=10)
    server.mode, server.fail_times = mode, server.requests + 2
    assert next(iter(StreamingTokenLoader(dataset)))


def test_opening_says_what_is_wrong(open_s3, server) -> None:
    server.mode = "refused"
    with pytest.raises(StorageError, match="credentials"):
        open_s3()
    server.mode = "fine"
    with pytest.raises(NotADatasetError):
        open_s3(remote="s3://bucket/nothing")


def test_a_server_that_is_down(packed, tmp_path) -> None:
    with s3_server(packed.root) as server:
        options = server.options
    source = Remote(url="s3://bucket", options=options, timeout=4, retries=1)
    with pytest.raises(TransientStorageError):
        source.read("manifest.json", limit=10)


def test_no_more_is_read_than_asked_for(packed, server) -> None:
    whole = (packed.root / "manifest.json").read_bytes()
    for url in ("s3://bucket", str(packed.root), f"file://{packed.root}"):
        source = Remote(url=url, options=server.options)
        assert source.read("manifest.json", limit=10) == whole[:11]
        assert source.read("manifest.json", limit=10**6) == whole
        with pytest.raises(FileMissingError):
            source.read("nothing", limit=1)


def test_a_scheme_that_nobody_knows() -> None:
    with pytest.raises((StorageError, ValueError), match="nosuch"):
        Remote(url="nosuch://x").read("y", limit=1)


def test_errors_of_a_thread_come_out_as_they_are() -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        within(5, fail, what="it")
    assert within(5, lambda: 3, what="it") == 3
