"""Reading a published dataset from each kind of store: the same errors and the same patience."""

import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace

import fsspec
import pytest

from streaming_ext.base.errors import StorageError, TransientStorageError
from streaming_ext.store.buckets import Bucket
from streaming_ext.store.patience import Retry
from streaming_ext.store.process_clients import client_of_process
from streaming_ext.store.remote import FileMissingError, Remote
from tests.servers.fault_proxy import FaultProxy, Faults
from tests.servers.scripted import Answer, scripted
from tests.streaming_ext.store.conftest import Cloud

DATA = bytes(range(256)) * 8192  # 2 MiB: a shard, read in a thread of its own


@pytest.fixture
def remote(cloud: Cloud, proxy: FaultProxy) -> Remote:
    """A dataset in a bucket behind a proxy."""
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


@pytest.mark.filterwarnings(  # botocore leaves a connection whose answer it cannot read
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed <socket:ResourceWarning"
)
@pytest.mark.parametrize(
    "faults", [Faults(answer=(503, "SlowDown")), Faults(cut_down=40), Faults(hang=True)]
)
def test_what_passes_is_waited_out(
    remote: Remote, proxy: FaultProxy, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDMILL_STORAGE_TIMEOUT", "1")
    proxy.inflict(faults)
    began = time.monotonic()
    with pytest.raises(TransientStorageError, match="a/shard"):
        remote.read("shard", limit=len(DATA))
    assert time.monotonic() - began < 40
    proxy.inflict(replace(faults, times=1))
    assert remote.read("shard", limit=len(DATA)) == DATA
    gc.collect()  # here, not in another test


BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>busy</Message></Error>"


def test_a_server_that_is_busy_for_longer_than_three_seconds() -> None:
    """Training gave up after three attempts in 3 s; it goes on for half a minute."""
    until = time.monotonic() + 4

    def answer(*_: object) -> Answer:
        busy = time.monotonic() < until
        return Answer(503, BUSY, {"Content-Type": "text/xml"}) if busy else Answer(200, b"hello")

    with scripted(answer) as server:
        options = {"endpoint_url": server.url, "key": "k", "secret": "s"}
        assert Remote(url="s3://bucket", options=options).read("x", limit=9) == b"hello"
    assert Retry.training(2).seconds == 30
    assert Retry.training(0) == replace(Retry.training(0), attempts=1, silences=1, seconds=0.0)


def test_the_patience_ends_within_the_seconds_of_a_file() -> None:
    with scripted(lambda *_: Answer(503, BUSY, {"Content-Type": "text/xml"})) as server:
        options = {"endpoint_url": server.url, "key": "k", "secret": "s"}
        remote = Remote(url="s3://bucket", options=options, timeout=3)
        began = time.monotonic()
        with pytest.raises(TransientStorageError, match="SlowDown"):
            remote.read("x", limit=9)
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
