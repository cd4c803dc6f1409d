"""What only an object store does: its faults, its leftovers, and who holds a dataset there."""

import asyncio
import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from streaming_ext.base.errors import (
    CorruptDatasetError,
    StorageError,
    TransientStorageError,
    UsageError,
)
from streaming_ext.store import lease as lease_module
from streaming_ext.store import open_storage
from streaming_ext.store import s3 as s3_dialect
from streaming_ext.store.client import ObjectClient, split_url
from streaming_ext.store.objects import ObjectStorage
from streaming_ext.store.patience import Retry, timeout_seconds
from tests.command_line import wait_for
from tests.servers.fault_proxy import FaultProxy, Faults, fault_proxy
from tests.servers.storage.swift import NOBODY, SwiftServer, s3_client


def quick(bucket: str, *, attempts: int = 3, timeout: float = 5.0) -> ObjectStorage:
    retry = Retry(attempts=attempts, first_pause=0.05)
    client = ObjectClient(scheme="s3", bucket=bucket, retry=retry, timeout=timeout)
    return ObjectStorage(f"s3://{bucket}/out", client)


@pytest.fixture
def proxy(s3: SwiftServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Clients of this test reach the server through it."""
    with fault_proxy(s3.port) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        yield running


def said_by(storage: ObjectStorage) -> list[str]:
    """What each kind of request says when it fails; all must."""
    said = []
    for request in (
        storage.create,
        storage.list,
        lambda: storage.put("x", b"1"),
        lambda: storage.read("x"),
        lambda: storage.put_new("y", b"1"),
    ):
        with pytest.raises(StorageError) as caught:
            request()
        assert type(caught.value) is StorageError or caught.value.transient
        said.append(str(caught.value))
    assert all(storage._client.bucket in words for words in said)
    return said


class TestRefusals:
    """Told at once, never retried, never taken for something else."""

    @pytest.mark.parametrize(
        ("env", "words"),
        [
            ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "the secret is wrong"),
            (
                {"AWS_ACCESS_KEY_ID": NOBODY[0], "AWS_SECRET_ACCESS_KEY": NOBODY[1]},
                "have no right",
            ),
            ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no credentials"),
        ],
    )
    def test_credentials(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], words: str
    ) -> None:
        for name, value in env.items():
            monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
        began = time.monotonic()
        for said in said_by(quick(bucket, attempts=9)):
            assert words in said
            assert all(secret not in said for secret in env.values() if "secret" in secret)
        assert time.monotonic() - began < 40

    def test_missing_bucket(self, s3: SwiftServer) -> None:
        for said in said_by(quick("nonesuch")):
            assert "there is no bucket 'nonesuch'" in said

    def test_clock_skew(self, bucket: str, proxy: FaultProxy) -> None:
        proxy.inflict(Faults(answer=(403, "RequestTimeTooSkewed")))
        for said in said_by(quick(bucket)):
            assert "the clock of this machine is wrong" in said

    @pytest.mark.parametrize(
        "url", ["s3://key:secret@bucket/x", "s3://", "s3:///x", "s3://b ucket/x", "s3://b/../x",
                "s3://bucket/x?versionId=1"],
    )  # fmt: skip
    def test_urls(self, url: str) -> None:
        with pytest.raises(UsageError) as caught:
            open_storage(url)
        assert "secret" not in str(caught.value)

    def test_slashes_do_not_matter(self) -> None:
        assert split_url("s3://bucket//a//b/") == ("s3", "bucket", "a/b")
        assert str(open_storage("s3://bucket/")) == "s3://bucket"

    def test_timeout_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHARDMILL_STORAGE_TIMEOUT", "7.5")
        assert timeout_seconds() == 7.5
        monkeypatch.setenv("SHARDMILL_STORAGE_TIMEOUT", "soon")
        with pytest.raises(UsageError, match="'soon', expected seconds"):
            timeout_seconds()


class TestPassingFaults:
    """Tried again; told in the end, with their cause."""

    @pytest.mark.parametrize(
        ("faults", "words"),
        [
            (Faults(answer=(503, "SlowDown")), "SlowDown"),
            (Faults(answer=(500, "InternalError")), "InternalError"),
            (Faults(cut_up=150), "Connection was closed"),
            (Faults(cut_down=20), "Connection was closed"),
        ],
    )
    def test_for_ever_and_for_a_while(
        self, bucket: str, proxy: FaultProxy, faults: Faults, words: str
    ) -> None:
        proxy.inflict(faults)
        for said in said_by(quick(bucket)):
            assert words in said
            assert "tried 3 times" in said
        proxy.inflict(replace(faults, times=2))
        storage = quick(bucket)
        storage.put("x", b"1" * 100_000)
        assert proxy.struck == 2
        assert storage.read("x") == b"1" * 100_000

    def test_hang(self, bucket: str, proxy: FaultProxy) -> None:
        proxy.inflict(Faults(hang=True))
        began = time.monotonic()
        storage = quick(bucket, attempts=2, timeout=0.5)
        with pytest.raises(TransientStorageError, match="no answer within"):
            storage.put("x", b"1")
        assert time.monotonic() - began < 40

    def test_a_slow_link_is_no_silence(self, bucket: str, proxy: FaultProxy) -> None:
        """One of a home, or a share of one: it takes longer than it may say nothing."""
        data = bytes(1_200_000)  # large enough for botocore's client
        storage = quick(bucket, attempts=1, timeout=1.0)
        storage.put("x", data)
        proxy.inflict(Faults(bytes_per_second=160_000))
        assert storage.read_range("x", 0, len(data)) == data  # 7 s, of which 0.4 s are silence

    def test_endpoint_down(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        for said in said_by(quick(bucket)):
            assert "127.0.0.1:9" in said

    def test_cuts_anywhere_leave_the_old_or_the_new(self, bucket: str, proxy: FaultProxy) -> None:
        old, new = b"o" * 400_000, b"n" * 400_000
        storage = quick(bucket, attempts=1)
        storage.put("x", old)
        outcomes = set()
        for cut in (100, 1_000, 50_000, 399_000, 400_500, 402_000):
            proxy.inflict(Faults(cut_up=cut))
            try:
                storage.put("x", new)
                outcomes.add("put")
            except TransientStorageError:
                outcomes.add("cut")
            proxy.inflict(Faults())
            assert storage.read("x") in {old, new}
            storage.put("x", old)
        assert "cut" in outcomes

    def test_cuts_of_a_download_never_give_a_part(self, bucket: str, proxy: FaultProxy) -> None:
        data = bytes(range(256)) * 4000
        quick(bucket).put("x", data)
        for cut in (10, 700, 500_000, 1_024_000):
            proxy.inflict(Faults(cut_down=cut, times=1))
            assert quick(bucket).read("x") == data
            assert proxy.struck == 1

    @pytest.mark.filterwarnings(  # botocore leaves a connection whose answer it cannot read
        "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed <socket:ResourceWarning"
    )
    def test_cuts_in_the_head_of_a_large_answer(self, bucket: str, proxy: FaultProxy) -> None:
        storage = quick(bucket)
        data = bytes(range(256)) * 5000
        storage.put("x", data)
        client = ObjectClient(scheme="s3", bucket=bucket, retry=storage._client.retry)
        for cut in range(1, 500, 16):
            proxy.inflict(Faults(cut_down=cut, times=1))
            assert client.read("out/x", what="read x", span=(0, len(data))) == data
            assert proxy.struck == 1
        gc.collect()  # here, not in another test

    def test_object_server_killed_and_started_again(self, bucket: str, s3: SwiftServer) -> None:
        storage = quick(bucket, attempts=8)
        storage.put("x", b"before")
        s3.kill("object")
        try:
            with pytest.raises(TransientStorageError, match="503|ServiceUnavailable"):
                quick(bucket, attempts=1).put("x", b"during")
            back = threading.Timer(0.5, s3.start, args=("object",))
            back.start()
            storage.put("x", b"after")
            back.join()
        finally:
            if "object" not in s3._processes:
                s3.start("object")
        assert storage.read("x") == b"after"

    def test_a_lost_answer_to_a_conditional_put(self, bucket: str, proxy: FaultProxy) -> None:
        storage = quick(bucket)
        proxy.inflict(Faults(cut_down=1, times=1))  # it was done, but nobody heard
        assert storage.put_new("lock", b"mine")
        assert not storage.put_new("lock", b"yours")
        assert storage.read("lock") == b"mine"


def test_what_the_store_copied_has_the_size_that_was_told(bucket: str) -> None:
    storage = quick(bucket)
    storage.put("x", b"short")
    assert storage.adopt(storage, "x", "y", 5)
    assert storage.read("y") == b"short"
    with pytest.raises(CorruptDatasetError, match=f"{storage}/x has 5 bytes, expected 6"):
        storage.adopt(storage, "x", "z", 6)
    with pytest.raises(FileNotFoundError):
        storage.adopt(storage, "w", "z", 6)


class TestMultipart:
    @pytest.fixture(autouse=True)
    def _small_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(s3_dialect, "PIECE_BYTES", 5 * 2**20)

    def test_large_files(self, bucket: str) -> None:
        data = bytes(range(256)) * (13 * 2**12)
        storage = quick(bucket)
        storage.put("x", data)
        assert storage.read("x") == data

    @pytest.mark.parametrize("how", ["given up", "failed"])
    def test_what_is_not_put_leaves_nothing_open(
        self, bucket: str, s3: SwiftServer, proxy: FaultProxy, how: str
    ) -> None:
        def is_open() -> bool:
            with closing(s3_client(s3.url)) as client:
                return "Uploads" in client.list_multipart_uploads(Bucket=bucket)

        storage, data = quick(bucket, attempts=1), bytes(26 * 2**20)
        shard = "train/00000/shard.00000.mds"
        proxy.inflict(Faults(bytes_per_second=2**23))
        if how == "given up":  # as a time-out does
            client, fs = storage._client, storage._client.filesystem
            putting = client.dialect.put(fs, bucket, f"out/{shard}", data, new=False)
            going_on = asyncio.run_coroutine_threadsafe(putting, fs.loop)
            wait_for(lambda: proxy.bytes_up > 2**20)
            assert is_open()
            going_on.cancel()
        else:
            cut = Faults(bytes_per_second=2**23, cut_up=2**20, times=2)
            proxy.inflict(cut)  # of the first two connections only the second sends a piece
            with pytest.raises(TransientStorageError):
                storage.put(shard, data)
            assert proxy.struck == 2
            sent = proxy.bytes_up
            for thread in threading.enumerate():
                if thread.name == "shardmill-s3":
                    thread.join()
            assert proxy.bytes_up == sent  # no piece goes on
        wait_for(lambda: not is_open())
        assert storage.list() == {}


class TestLease:
    @pytest.fixture(autouse=True)
    def _fast(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lease_module, "LEASE_SECONDS", 1.5)
        monkeypatch.setattr(lease_module, "BEAT_SECONDS", 0.2)
        monkeypatch.setattr(lease_module, "_WATCH_SECONDS", 0.1)

    @staticmethod
    def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
        names = (f"machine {number}" for number in range(10**6))
        monkeypatch.setattr(lease_module, "this_machine", lambda: next(names))

    def test_a_live_holder_elsewhere_is_seen(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease_module, "LEASE_SECONDS", 60.0)
        self._elsewhere(monkeypatch)
        with quick(bucket).exclusive():
            began = time.monotonic()
            with pytest.raises(UsageError, match="Another run"), quick(bucket).exclusive():
                pytest.fail("held twice")
            assert time.monotonic() - began < 30  # it waited for no lease

    def test_a_dead_holder_elsewhere_is_followed_after_the_lease(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._elsewhere(monkeypatch)
        # Whatever times its clock wrote, and the server's: neither is looked at.
        quick(bucket).put("runs/.lock-00000004", b'{"machine": "gone", "pid": 1, "time": 9e99}')
        began = time.monotonic()
        with quick(bucket).exclusive():
            assert time.monotonic() - began > 1.4
            assert list(quick(bucket).list("runs")) == ["runs/.lock-00000005"]

    def test_a_dead_holder_here_is_followed_at_once(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease_module, "LEASE_SECONDS", 60.0)
        content = (
            f'{{"machine": "{lease_module.this_machine()}", "pid": 999999999, "started": "1"}}'
        )
        quick(bucket).put("runs/.lock-00000001", content.encode())
        began = time.monotonic()
        with quick(bucket).exclusive():
            assert time.monotonic() - began < 30  # it waited for no lease

    def test_who_was_taken_over_stops(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        # On a busy machine the heart may not beat for seconds.
        monkeypatch.setattr(lease_module, "LEASE_SECONDS", 30.0)
        storage = quick(bucket)
        with storage.exclusive():
            storage.require_held()
            quick(bucket).put("runs/.lock-00000002", b"{}")

            def lost() -> bool:
                try:
                    storage.require_held()
                except StorageError as error:
                    assert "another run took it over" in str(error)  # noqa: PT017
                    return True
                return False

            wait_for(lost, seconds=30)
        assert quick(bucket).read("runs/.lock-00000002") == b"{}"

    def test_who_cannot_renew_stops_before_another_may_begin(
        self, bucket: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease_module, "LEASE_SECONDS", 600.0)
        storage = quick(bucket, attempts=1)
        with storage.exclusive():
            proxy.inflict(Faults(answer=(503, "SlowDown"), times=2))
            wait_for(lambda: proxy.struck == 2)
            storage.require_held()  # a burst passes
            proxy.inflict(Faults(answer=(503, "SlowDown")))
            wait_for(lambda: proxy.struck >= 2)  # with a whole beat between them
            monkeypatch.setattr(lease_module, "LEASE_SECONDS", lease_module.BEAT_SECONDS / 2)
            with pytest.raises(StorageError, match="could not be renewed"):
                storage.require_held()
            proxy.inflict(Faults())

    def test_who_comes_late_to_an_old_generation_does_not_get_it(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It saw generation 1 end; meanwhile 2 came and went, and 3 is at work."""
        monkeypatch.setattr(lease_module, "LEASE_SECONDS", 5.0)  # for a busy machine
        late = quick(bucket)
        put_new = ObjectStorage.put_new

        def overtaken(self: ObjectStorage, path: str, data: bytes) -> bool:
            if self is late and path.endswith("01"):
                self.put("runs/.lock-00000003", b"{}")
                monkeypatch.setattr(ObjectStorage, "put_new", put_new)
            return put_new(self, path, data)

        monkeypatch.setattr(ObjectStorage, "put_new", overtaken)
        told: list[str] = []
        with late.exclusive(told.append):  # waits for the lease of 3, whose holder does nothing
            assert any("waiting for another run (process ? on ?) to let go of" in each
                       for each in told)  # fmt: skip
            assert list(late.list("runs")) == ["runs/.lock-00000004"]


class TestScratch:
    """Beside no local output: a folder that is the user's alone."""

    def test_is_private_and_named_by_the_url(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        one, two = open_storage("s3://bucket/a/out"), open_storage("s3://bucket/b/out")
        assert one.name.startswith("out-")
        assert one.name != two.name
        assert one.name == open_storage("s3://bucket/a/out/").name
        assert one.scratch_parent.stat().st_mode & 0o777 == 0o700
        assert one.scratch_parent.parent == tmp_path

    def test_of_someone_else_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        (tmp_path / "theirs").mkdir()
        (tmp_path / f"shardmill-{os.getuid()}").symlink_to(tmp_path / "theirs")
        with pytest.raises(StorageError, match="Pass --scratch"):
            _ = open_storage("s3://bucket/out").scratch_parent
