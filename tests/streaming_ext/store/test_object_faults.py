"""Object stores that refuse, fail or hang: Swift, Azurite and the Google emulator."""

import gc
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from streaming_ext.base.errors import (
    ShardmillError,
    StorageError,
    TransientStorageError,
    UsageError,
)
from streaming_ext.store import open_storage
from streaming_ext.store.buckets import split_url
from streaming_ext.store.objects import ObjectStorage
from streaming_ext.store.patience import timeout_seconds
from streaming_ext.store.remote import Remote
from tests.servers.fault_proxy import FaultProxy, Faults
from tests.servers.storage import azurite as azure_server
from tests.servers.storage import gcs as google_server
from tests.servers.storage import swift as s3_server
from tests.streaming_ext.store.conftest import Cloud, cloud_of

# Clients leave a connection open if they cannot read its answer.
UNREAD = (
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed <socket:ResourceWarning",
)


def failures(
    storage: ObjectStorage,
    kinds: type[ShardmillError] | tuple[type[ShardmillError], ...] = StorageError,
) -> list[str]:
    """Return the message of each kind of request; all must fail, and none may be retried."""
    messages = []
    for request in (
        storage.create,
        storage.list,
        lambda: storage.put("x", b"1"),
        lambda: storage.put_new("y", b"1"),
    ):
        with pytest.raises(kinds) as caught:
            request()
        assert not caught.value.transient
        messages.append(str(caught.value))
    return messages


SERVERS = {"s3": "s3", "gs": "gcs", "az": "azurite"}
CONNECTION, ACCOUNT = "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME"
KEY_ID, SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
CREDENTIALS: list[tuple[str, dict[str, str] | Callable[[Any], dict[str, str]], str]] = [
    ("s3", {SECRET: "planted-wrong"}, "SignatureDoesNotMatch"),
    ("s3", dict(zip((KEY_ID, SECRET), s3_server.NOBODY, strict=True)), "AccessDenied"),
    ("s3", {KEY_ID: "", SECRET: ""}, "credentials"),
    ("gs", lambda server: server.environment(None), "401"),
    ("gs", lambda server: server.environment(google_server.STRANGER), "account not found"),
    (
        "gs",
        lambda server: server.environment(google_server.NOBODY),
        "does not have storage.objects access",
    ),
    ("az", {CONNECTION: "rubbish"}, "malformed"),
    ("az", {CONNECTION: ""}, CONNECTION),
    ("az", {CONNECTION: "", ACCOUNT: "nobody"}, "DefaultAzureCredential failed"),
    (
        "az",
        lambda server: server.environment(azure_server.WRONG_KEY),
        "AuthorizationFailure|AuthenticationFailed",
    ),
]


class TestRefusals:
    """Refusals are reported at once, never retried, and never taken for something else."""

    def test_missing_bucket(self, cloud: Cloud) -> None:
        for message in failures(cloud.storage("nonesuch")):
            assert "nonesuch" in message
            assert "bucket" in message or "container" in message

    @pytest.mark.parametrize(("scheme", "environment", "words"), CREDENTIALS)
    def test_credentials(
        self,
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
        scheme: str,
        environment: dict[str, str] | Callable[[Any], dict[str, str]],
        words: str,
    ) -> None:
        cloud = cloud_of(scheme, request)
        if callable(environment):
            environment = environment(request.getfixturevalue(SERVERS[scheme]))
            monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
        began = time.monotonic()
        for message in failures(cloud.storage(attempts=9), (StorageError, UsageError)):
            assert re.search(f"{cloud.bucket}.*({words})", message)
            assert "docs/reference/configuration.md" in message
            assert azure_server.WRONG_KEY not in message
            assert "planted" not in message
        assert time.monotonic() - began < 40

    @pytest.mark.parametrize(
        "url",
        [
            "s3://key:secret@bucket/x",
            "s3://",
            "s3:///x",
            "s3://b ucket/x",
            "s3://b/../x",
            "s3://bucket/x?versionId=1",
        ],
    )
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


class TestTransientFaults:
    """Transient faults are retried, and reported in the end with their cause."""

    @pytest.mark.filterwarnings(*UNREAD)
    @pytest.mark.parametrize(
        ("faults", "words"),
        [
            (Faults(answer=(503, "SlowDown")), "503|ServerBusy|SlowDown|ServiceUnavailable"),
            (Faults(cut_up=150), "(?i)closed|reset|disconnected|aborted"),
            (Faults(cut_down=20), "(?i)closed|reset|disconnected|aborted|cut"),
            (Faults(hang=True), "(?i)time"),
        ],
        ids=["busy", "cut up", "cut down", "hang"],
    )
    def test_for_ever_and_for_a_while(
        self, cloud: Cloud, proxy: FaultProxy, faults: Faults, words: str
    ) -> None:
        """The fault strikes an output, and a published dataset that training reads."""
        storage, data = cloud.storage(timeout=1.0), b"1" * 100_000
        remote = Remote(url=str(storage), timeout=6)
        proxy.inflict(faults)
        with pytest.raises(TransientStorageError, match=words) as caught:
            cloud.storage(attempts=2, timeout=1.0).put("x", b"1" * 1000)
        assert "tried 2 times" in str(caught.value)
        with pytest.raises(TransientStorageError, match=rf"out/x.*({words.removeprefix('(?i)')})"):
            replace(remote, timeout=1.5, retries=0).read("x", limit=len(data))
        proxy.inflict(replace(faults, times=1))
        storage.put("x", data)
        assert proxy.struck == 1
        proxy.inflict(replace(faults, times=1))
        assert remote.read("x", limit=len(data)) == data
        assert proxy.struck == 1
        gc.collect()  # unread connections end here, not in another test

    @pytest.mark.filterwarnings(*UNREAD)
    @pytest.mark.parametrize(("status", "hang"), [(404, False), (404, True), (503, True)], ids=str)
    def test_errors_whose_words_do_not_come(
        self, cloud: Cloud, proxy: FaultProxy, status: int, hang: bool
    ) -> None:
        """The request and the library do not matter."""
        storage = cloud.storage(timeout=0.5)
        remote = Remote(url=str(storage), timeout=1.5)
        requests: list[Callable[[], object]] = [
            lambda: storage.put("x", b"1" * 1000),
            lambda: storage.put_new("y", b"1"),
            lambda: storage.read("x"),
            lambda: storage.read_range("x", 10, 20),
            lambda: remote.read("x", limit=1000),
            storage.list,
            storage.create,
            lambda: storage.remove("x"),
        ]
        fault = Faults(answer=(status, "Injected"), missing=30, hang=hang, times=1)
        for request in requests:
            proxy.inflict(fault)
            request()
            assert proxy.struck == 1
        assert [*storage.list()] == ["y"]
        proxy.inflict(replace(fault, times=None))
        for request in requests[:2]:
            with pytest.raises(StorageError, match=f"{cloud.bucket}/out/[xy]: "):
                request()
        gc.collect()

    def test_a_slow_link_is_no_silence(self, cloud: Cloud, proxy: FaultProxy) -> None:
        """A transfer takes far longer than the server may stay silent."""
        storage, data = cloud.storage(attempts=1, timeout=1.0), bytes(200_000)
        storage.put("x", data)
        proxy.inflict(Faults(bytes_per_second=120_000))
        assert storage.read_range("x", 0, len(data)) == data

    def test_nobody_listens(self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in cloud.environment(9).items():
            monkeypatch.setenv(name, value)
        for request in (cloud.storage().list, cloud.storage().create):
            with pytest.raises(TransientStorageError, match="(?i)connect"):
                request()

    def test_a_lost_answer_to_a_conditional_put(self, cloud: Cloud, proxy: FaultProxy) -> None:
        storage = cloud.storage()
        proxy.inflict(Faults(cut_down=1, times=1))  # the object is put, but the answer is lost
        assert storage.put_new("lock", b"mine")
        assert not storage.put_new("lock", b"yours")
        assert storage.read("lock") == b"mine"

    @pytest.mark.filterwarnings(*UNREAD)
    def test_cuts_of_a_download_never_give_a_part(self, cloud: Cloud, proxy: FaultProxy) -> None:
        data = bytes(range(256)) * 4000
        storage = cloud.storage()
        storage.put("x", data)
        for cut in (1, 100, 200, 300, 700, 1_024_000):
            proxy.inflict(Faults(cut_down=cut, times=1))
            assert storage.read_range("x", 0, len(data)) == data
            assert proxy.struck == 1

    def test_cuts_anywhere_leave_the_old_or_the_new(self, cloud: Cloud, proxy: FaultProxy) -> None:
        old, new = b"o" * 400_000, b"n" * 400_000
        storage = cloud.storage(attempts=1)
        storage.put("x", old)
        results = set()
        for cut in (100, 1_000, 50_000, 399_000, 402_000):
            proxy.inflict(Faults(cut_up=cut))
            try:
                storage.put("x", new)
                results.add("put")
            except TransientStorageError:
                results.add("cut")
            proxy.inflict(Faults())
            assert storage.read("x") in {old, new}
            storage.put("x", old)
        assert "cut" in results
