"""Buckets of each kind of store, and a proxy in front of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from streaming_ext.store.buckets import Bucket
from streaming_ext.store.objects import ObjectStorage
from streaming_ext.store.patience import Retry
from tests.servers.fault_proxy import FaultProxy, fault_proxy
from tests.servers.storage.azurite import make_container
from tests.servers.storage.swift import aws_environment


@dataclass(frozen=True)
class Cloud:
    """A bucket of a store, and the environment that makes its clients use another port."""

    scheme: str
    bucket: str
    port: int
    environment: Callable[[int], dict[str, str]]

    def storage(
        self, bucket: str | None = None, *, attempts: int = 3, timeout: float = 2.0
    ) -> ObjectStorage:
        """Open a dataset in the bucket, with short timeouts and pauses."""
        name = bucket or self.bucket
        retry = Retry(attempts=attempts, first_pause=0.05)
        opened = Bucket(scheme=self.scheme, name=name, retry=retry, timeout=timeout)
        return ObjectStorage(f"{self.scheme}://{name}/out", opened)


def cloud_of(scheme: str, request: pytest.FixtureRequest) -> Cloud:
    """Create a bucket in a store."""
    if scheme == "s3":
        server = request.getfixturevalue("s3")
        return Cloud(
            "s3",
            request.getfixturevalue("bucket"),
            server.port,
            lambda port: aws_environment(f"http://127.0.0.1:{port}"),
        )
    if scheme == "gs":
        server = request.getfixturevalue("gcs")
        return Cloud("gs", server.make_bucket(), server.port, lambda p: server.environment(port=p))
    server = request.getfixturevalue("azurite")
    bucket = make_container(server)
    return Cloud("az", bucket, server.port, lambda port: server.environment(port=port))


@pytest.fixture(params=["s3", "gs", "az"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    return cloud_of(request.param, request)


@pytest.fixture
def proxy(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy through which the clients of a test reach the server."""
    with fault_proxy(cloud.port) as running:
        for name, value in cloud.environment(running.port).items():
            monkeypatch.setenv(name, value)
        yield running
