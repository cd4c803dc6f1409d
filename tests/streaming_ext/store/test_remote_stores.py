"""Reading files of a published dataset from each kind of store, within limits of time and size."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from streaming_ext.base.errors import FileMissingError, StorageError, TransientStorageError
from streaming_ext.store.buckets import Bucket
from streaming_ext.store.patience import Attempts, Retry
from streaming_ext.store.process_clients import client_of_process
from streaming_ext.store.remote import Remote, within
from tests.servers.scripted import Answer, scripted
from tests.streaming_ext.build import Built
from tests.streaming_ext.store.conftest import Cloud

DATA = bytes(range(256)) * 8192  # 2 MiB: a shard, read in a thread of its own


@pytest.fixture
def remote(cloud: Cloud) -> Remote:
    """A dataset in a bucket."""
    bucket = Bucket(scheme=cloud.scheme, name=cloud.bucket)
    bucket.put("a/shard", DATA)
    bucket.put("a/small", b"small")
    return Remote(url=f"{cloud.scheme}://{cloud.bucket}/a", timeout=20)


def test_existing_and_missing_files(remote: Remote) -> None:
    assert remote.read("shard", limit=len(DATA)) == DATA
    assert remote.read("shard", limit=9) == DATA[:10]
    assert remote.read("small", limit=9) == b"small"
    with pytest.raises(FileMissingError, match="a/nothing is missing"):
        remote.read("nothing", limit=9)
    if remote.url.startswith("gs:"):
        return  # Google answers the same for an object that is not there
    nowhere = f"{remote.url.partition('://')[0]}://nonesuch-bucket/a"
    with pytest.raises(StorageError, match="nonesuch-bucket") as caught:
        Remote(url=nowhere).read("shard", limit=9)
    assert not caught.value.transient


BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>busy</Message></Error>"


def test_training_waits_for_a_busy_server_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three attempts would end after a moment; training retries for 30 s, here for 6 s."""
    assert Retry.training(2).seconds == 30
    assert Retry.training(0) == replace(Retry.training(0), attempts=1, silences=1, seconds=0.0)
    monkeypatch.setenv("SHARDMILL_STORAGE_TIMEOUT", "6")
    until = time.monotonic() + 1.5

    def answer(*_: object) -> Answer:
        busy = time.monotonic() < until
        return Answer(503, BUSY, {"Content-Type": "text/xml"}) if busy else Answer(200, b"hello")

    with scripted(answer) as server:
        options = {"endpoint_url": server.url, "key": "k", "secret": "s"}
        remote = Remote(url="s3://bucket", options=options)
        assert remote.read("x", limit=9) == b"hello"
        until = time.monotonic() + 600
        began = time.monotonic()
        with pytest.raises(TransientStorageError, match="SlowDown"):
            replace(remote, timeout=2).read("x", limit=9)
        assert time.monotonic() - began < 25


def test_other_schemes_are_opened_as_before() -> None:
    fsspec.filesystem("memory").pipe_file("/data/x", b"hello")
    remote = Remote(url="memory://data")
    assert remote.read("x", limit=9) == b"hello"
    with pytest.raises(FileMissingError):
        remote.read("y", limit=9)


def test_a_client_each_process_and_each_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def client(make: Callable[[], object] = object) -> object:
        return client_of_process(("s3", "bucket"), make, {"key": "k"})

    first = client()
    assert client() is first
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, b"new" if client() is not first else b"old")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 3) == b"new"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert client() is not first
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_at_most_the_limit_is_read(packed: Built, scheme: str) -> None:
    whole = (packed.root / "manifest.json").read_bytes()
    source = Remote(url=f"{scheme}{packed.root}")
    assert source.read("manifest.json", limit=10) == whole[:11]
    assert source.read("manifest.json", limit=10**6) == whole
    with pytest.raises(FileMissingError):
        source.read("nothing", limit=1)


def test_what_is_no_file_and_what_must_not_be_shown(tmp_path: Path) -> None:
    with pytest.raises((StorageError, ValueError), match="nosuch"):
        Remote(url="nosuch://x").read("y", limit=1)
    (tmp_path / "index.json").mkdir()
    with pytest.raises(FileMissingError, match="is missing"):
        Remote(url=str(tmp_path)).read("index.json", limit=1)
    options = {"key": "k", "secret": "planted-secret"}
    assert "planted" not in repr(Remote(url="s3://bucket/data", options=options))


def test_the_time_that_others_waited_counts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "shard")
    with pytest.raises(TransientStorageError, match=r"did not come within 7\.1 s"):
        Remote(url=str(tmp_path)).read("shard", limit=1, seconds=0.1, waited=7)
    os.close(os.open(tmp_path / "shard", os.O_WRONLY))  # ends the thread that reads


def test_what_takes_too_long_says_what_went_wrong_meanwhile() -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        within(60, fail, what="it")
    assert within(60, lambda: 3, what="it") == 3
    ended = threading.Event()
    attempts = Attempts(Retry(first_pause=0.001))
    attempts.failed(TransientStorageError("503 Slow Down"))
    with pytest.raises(TransientStorageError, match=r"it did not come .* 503 Slow Down"):
        within(0.2, ended.wait, what="it", attempts=attempts)
    ended.set()
