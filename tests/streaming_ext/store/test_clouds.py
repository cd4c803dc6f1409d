"""What Google's and Azure's stores answer when something is wrong, in words that help."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from streaming_ext.base.errors import (
    ShardmillError,
    StorageError,
    TransientStorageError,
    UsageError,
)
from streaming_ext.store.client import ObjectClient
from streaming_ext.store.objects import ObjectStorage
from streaming_ext.store.patience import Retry
from tests.servers.fault_proxy import FaultProxy, Faults, fault_proxy
from tests.servers.storage.azurite import WRONG_KEY, AzuriteServer, make_container
from tests.servers.storage.gcs import NOBODY, STRANGER, GcsServer


@dataclass(frozen=True)
class Cloud:
    """A bucket of one provider, and what sends its clients elsewhere."""

    scheme: str
    bucket: str
    port: int
    environment: Callable[[int], dict[str, str]]

    def storage(self, bucket: str | None = None, attempts: int = 3) -> ObjectStorage:
        """A dataset there; faults are told soon."""
        bucket = bucket or self.bucket
        retry = Retry(attempts=attempts, first_pause=0.05)
        client = ObjectClient(scheme=self.scheme, bucket=bucket, retry=retry, timeout=2.0)
        return ObjectStorage(f"{self.scheme}://{bucket}/out", client)


@pytest.fixture(params=["gs", "az"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    if request.param == "gs":
        gcs: GcsServer = request.getfixturevalue("gcs")
        return Cloud("gs", gcs.make_bucket(), gcs.port, lambda port: gcs.environment(port=port))
    azurite: AzuriteServer = request.getfixturevalue("azurite")
    return Cloud(
        "az", make_container(azurite), azurite.port, lambda port: azurite.environment(port=port)
    )


@pytest.fixture
def proxy(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Clients of this test reach the server through it."""
    with fault_proxy(cloud.port) as running:
        for name, value in cloud.environment(running.port).items():
            monkeypatch.setenv(name, value)
        yield running


def requests(storage: ObjectStorage) -> list[Callable[[], object]]:
    return [
        storage.create,
        storage.list,
        lambda: storage.put("x", b"1"),
        lambda: storage.put_new("y", b"1"),
    ]


def test_missing_bucket(cloud: Cloud) -> None:
    for request in requests(cloud.storage("nonesuch")):
        with pytest.raises(StorageError, match="there is no bucket 'nonesuch'") as caught:
            request()
        assert not caught.value.transient


class TestGoogle:
    @pytest.mark.parametrize(
        ("account", "words"),
        [
            (None, "does not accept these credentials, or got none"),
            (STRANGER, "does not accept these credentials"),
            (NOBODY, "have no right"),
        ],
    )
    def test_credentials(
        self, gcs: GcsServer, monkeypatch: pytest.MonkeyPatch, account: str | None, words: str
    ) -> None:
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
        for name, value in gcs.environment(account).items():
            monkeypatch.setenv(name, value)
        cloud = Cloud("gs", gcs.make_bucket(), gcs.port, lambda port: {})
        assert_told_at_once(cloud, words)


class TestAzure:
    @pytest.mark.parametrize(
        ("env", "kind", "words"),
        [
            ({}, UsageError, "AZURE_STORAGE_CONNECTION_STRING|connection_string"),
            ({"AZURE_STORAGE_CONNECTION_STRING": "rubbish"}, UsageError, "malformed"),
            ({"AZURE_STORAGE_ACCOUNT_NAME": "nobody"}, StorageError, "no credentials"),
            (None, StorageError, "have no right|key or token of this account is wrong"),
        ],
    )
    def test_credentials(
        self,
        azurite: AzuriteServer,
        monkeypatch: pytest.MonkeyPatch,
        env: dict[str, str] | None,
        kind: type[ShardmillError],
        words: str,
    ) -> None:
        bucket = make_container(azurite)
        monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
        for name, value in (azurite.environment(WRONG_KEY) if env is None else env).items():
            monkeypatch.setenv(name, value)
        assert_told_at_once(Cloud("az", bucket, azurite.port, lambda port: {}), words, kind)


def assert_told_at_once(
    cloud: Cloud, words: str, kind: type[ShardmillError] = StorageError
) -> None:
    began = time.monotonic()
    for request in requests(cloud.storage(attempts=9)):
        with pytest.raises(kind, match=words) as caught:
            request()
        assert not caught.value.transient
        assert cloud.bucket in str(caught.value)
        assert WRONG_KEY not in str(caught.value)
    assert time.monotonic() - began < 40


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (Faults(answer=(503, "SlowDown")), "503|ServerBusy|SlowDown|ServiceUnavailable"),
        (Faults(cut_up=150), "closed|reset|disconnected"),
        (Faults(cut_down=20), "closed|reset|disconnected|400"),
        (Faults(hang=True), "no answer within"),
    ],
    ids=["busy", "cut up", "cut down", "hang"],
)
def test_faults_that_may_pass(cloud: Cloud, proxy: FaultProxy, faults: Faults, words: str) -> None:
    """Tried again, told in the end with their cause; and without a trace where they pass."""
    proxy.inflict(faults)
    with pytest.raises(TransientStorageError, match=words) as caught:
        cloud.storage(attempts=2).put("x", b"1" * 1000)
    assert "tried 2 times" in str(caught.value)
    proxy.inflict(replace(faults, times=1))
    storage = cloud.storage()
    storage.put("x", b"1" * 100_000)
    assert storage.read("x") == b"1" * 100_000
    assert proxy.struck == 1


def test_a_lost_answer_to_a_conditional_put(cloud: Cloud, proxy: FaultProxy) -> None:
    storage = cloud.storage()
    proxy.inflict(Faults(cut_down=1, times=1))  # it was done, but nobody heard
    assert storage.put_new("lock", b"mine")
    assert not storage.put_new("lock", b"yours")
    assert storage.read("lock") == b"mine"
