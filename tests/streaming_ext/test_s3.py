"""Reading from a real S3 server: the batches, and the true reason of each failure."""

import gc
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.base.errors import (
    CorruptDatasetError,
    NotADatasetError,
    ShardmillError,
    StorageError,
    TransientStorageError,
)
from streaming_ext.reading.cache import DOWNLOADS
from streaming_ext.store.s3 import S3
from tests.command_line import within_a_minute
from tests.servers.fault_proxy import FaultProxy, Faults, fault_proxy
from tests.servers.storage.swift import NOBODY, OWNER, SwiftServer, s3_client
from tests.streaming_ext.build import Built
from tests.streaming_ext.conftest import tokens_of

Open = Callable[..., StreamingTokenDataset]
SHARD = "00001/shard.00002.mds.zstd"
LATE = "(come within|imeout|imed out)"


@pytest.fixture
def proxy(s3: SwiftServer) -> Iterator[FaultProxy]:
    with fault_proxy(s3.port) as running:
        yield running


@pytest.fixture
def open_s3(
    open_raw: Open,
    published: tuple[Built, str],
    proxy: FaultProxy,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Open:
    """Open the published dataset through the proxy."""
    monkeypatch.setenv("SHARDMILL_STORAGE_TIMEOUT", "4")  # wait out a 503 for 4 s, not 30

    def make(credentials: tuple[str, str] = OWNER, **changes: Any) -> StreamingTokenDataset:
        key, secret = credentials
        settings: dict[str, Any] = {
            "remote": published[1],
            "local": tmp_path,
            "download_timeout": 30,
            "storage_options": {"endpoint_url": proxy.url, "key": key, "secret": secret},
        }
        return open_raw(**(settings | changes))

    return make


@pytest.fixture
def expected(open_raw: Open, published: tuple[Built, str]) -> list[Any]:
    """The batches of an epoch, read from disk."""
    return tokens_of(open_raw(local=published[0].root))


def shards_asked(proxy: FaultProxy) -> list[str]:
    return [path for path in proxy.asked if "shard." in path]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch(open_s3: Open, proxy: FaultProxy, expected: list[Any], workers: int) -> None:
    dataset = open_s3()
    assert tokens_of(StreamingTokenLoader(dataset, num_workers=workers)) == expected
    # Threads and workers together request each shard once.
    assert len(shards_asked(proxy)) == len(set(shards_asked(proxy))) == dataset.reader.num_shards
    assert tokens_of(StreamingTokenLoader(open_s3(), num_workers=workers)) == expected
    assert len(shards_asked(proxy)) == dataset.reader.num_shards  # all from the cache


def test_all_threads_share_one_client(open_s3: Open) -> None:
    """Creating a client takes a good part of a second, and a dozen threads read."""

    def clients() -> int:
        return sum(isinstance(thing, S3) for thing in gc.get_objects())

    gc.collect()  # clients that other tests left could disappear at any time
    before = clients()
    tokens_of(open_s3())
    assert clients() == before + 1


class TestFaults:
    """A fault while training reads is an error within seconds, which names shard and cause."""

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize(
        ("faults", "error", "cause"),
        [
            (Faults(answer=(403, "AccessDenied")), StorageError, "AccessDenied"),
            (Faults(answer=(503, "SlowDown")), TransientStorageError, "SlowDown"),
            (Faults(bytes_per_second=60), TransientStorageError, LATE),
            (Faults(hang=True), TransientStorageError, LATE),
            (None, TransientStorageError, "(?i:connect|did not come)"),
        ],
        ids=["forbidden", "busy", "slow", "hang", "gone"],
    )
    def test_for_ever(
        self,
        open_s3: Open,
        proxy: FaultProxy,
        faults: Faults | None,
        error: type[ShardmillError],
        cause: str,
        workers: int,
    ) -> None:
        loader = StreamingTokenLoader(open_s3(), num_workers=workers)
        loader.dataset.reader.caches[0].source.timeout = 2
        proxy.close() if faults is None else proxy.inflict(faults)
        with within_a_minute(), pytest.raises(error, match=rf"(?s)shard\.\d+\.mds\.zstd.*{cause}"):
            next(iter(loader))
        if error is StorageError:  # not retried; threads that look ahead send their own requests
            asked = shards_asked(proxy)
            assert max(asked.count(path) for path in asked) <= 2 * max(1, workers)

    def test_who_waits_for_another_reader_begins_no_new_patience(
        self, open_s3: Open, proxy: FaultProxy
    ) -> None:
        """Two readers, like two workers of a loader, wait out a fault only once."""
        readers = [open_s3().reader for _ in range(2)]
        proxy.inflict(Faults(answer=(503, "SlowDown")))
        with ThreadPoolExecutor(2) as threads:
            opened = [threads.submit(reader.shards.open, 0) for reader in readers]
        tried = [int(re.findall(r"tried (\d+) times", str(o.exception()))[0]) for o in opened]
        assert min(tried) == 3 < max(tried)

    @pytest.mark.parametrize("shards", [1, 12])
    def test_threads_that_wait_share_a_failure(
        self, open_s3: Open, proxy: FaultProxy, shards: int
    ) -> None:
        """Threads wait for the same shard, or for their turn: only four download at once."""
        reader = open_s3(download_retry=0 if shards == 1 else 2).reader
        reader.caches[0].source.timeout = 2
        proxy.inflict(Faults(hang=True))
        with ThreadPoolExecutor(12) as threads:
            opened = [threads.submit(reader.shards.open, n % shards) for n in range(12)]
        failures = [outcome.exception() for outcome in opened]
        for number, failure in enumerate(failures):
            assert isinstance(failure, TransientStorageError)
            assert re.search(rf"{reader.caches[0].label(number % shards)}.*{LATE}", str(failure))
        # On a busy machine, a thread may come so late that it downloads for itself.
        waited = sum("waited for behind others" in str(failure) for failure in failures)
        assert (1 <= waited <= 12 - DOWNLOADS) or shards == 1
        assert proxy.struck <= (3 * (12 - waited) if shards > 1 else 1)
        proxy.inflict(Faults())
        reader.shards.open(0)  # a later reader tries again

    def test_a_server_whose_disks_are_gone_for_a_while(
        self, open_s3: Open, s3: SwiftServer, expected: list[Any]
    ) -> None:
        dataset = open_s3(download_retry=1)
        s3.kill("object")
        try:
            with pytest.raises(TransientStorageError, match=r"shard\..*ServiceUnavailable"):
                tokens_of(dataset)
        finally:
            s3.start("object")
        assert tokens_of(dataset) == expected

    def test_a_byte_changed_on_the_way_is_fetched_once_more(
        self, open_s3: Open, proxy: FaultProxy, expected: list[Any]
    ) -> None:
        dataset = open_s3()
        proxy.inflict(Faults(flip=True, times=1))
        assert tokens_of(dataset) == expected
        assert proxy.struck == 1
        assert len(shards_asked(proxy)) == dataset.reader.num_shards + 1


class TestShards:
    """A damaged object is fetched once more, then named; a missing one is named at once."""

    @pytest.fixture
    def damaged(self, published: tuple[Built, str], s3: SwiftServer, how: str) -> Iterator[None]:
        bucket, _, prefix = published[1].removeprefix("s3://").partition("/")
        stored = {"Bucket": bucket, "Key": f"{prefix}/train/{SHARD}"}
        whole = (published[0].root / "train" / SHARD).read_bytes()
        flipped = whole[:-5] + bytes([whole[-5] ^ 4]) + whole[-4:]
        with closing(s3_client(s3.url)) as client:
            if how == "missing":
                client.delete_object(**stored)
            else:
                client.put_object(**stored, Body=flipped if how == "flipped" else whole[:-9])
            yield
            client.put_object(**stored, Body=whole)

    @pytest.mark.usefixtures("damaged")
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize(
        ("how", "cause"),
        [
            ("missing", "is missing"),
            ("truncated", "bytes, the index says"),
            ("flipped", "XXH3-128 .* the index says"),
        ],
    )
    def test_is_named(
        self, open_s3: Open, proxy: FaultProxy, how: str, cause: str, workers: int
    ) -> None:
        dataset = open_s3(predownload=1)
        with within_a_minute(), pytest.raises(CorruptDatasetError, match=rf"(?s){SHARD}.*{cause}"):
            tokens_of(StreamingTokenLoader(dataset, num_workers=workers))
        asked = sum(path.endswith(SHARD) for path in proxy.asked)
        # Training requests the shard, and a thread that looks ahead may request it too.
        assert asked in ({1, 2} if how == "missing" else {2, 4})


@pytest.mark.parametrize(
    ("remote", "credentials", "error", "cause"),
    [
        (None, (OWNER[0], "planted-wrong-secret"), StorageError, "json.*SignatureDoesNotMatch"),
        (None, NOBODY, StorageError, r"manifest\.json.*AccessDenied"),
        ("s3://nonesuch/a", OWNER, StorageError, "s3://nonesuch/a.*NoSuchBucket"),
        ("other", OWNER, NotADatasetError, "b: neither"),
    ],
    ids=["wrong secret", "no rights", "no bucket", "no dataset"],
)
def test_what_a_user_got_wrong_is_said_when_the_dataset_is_opened(
    open_s3: Open,
    published: tuple[Built, str],
    remote: str | None,
    credentials: tuple[str, str],
    error: type[ShardmillError],
    cause: str,
) -> None:
    url = published[1][:-1] + "b" if remote == "other" else remote or published[1]
    with pytest.raises(error, match=f"(?s){cause}") as caught:
        open_s3(credentials, remote=url)
    assert "planted" not in str(caught.value)
