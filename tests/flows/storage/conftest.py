"""The way to the S3 server, on which faults may be put."""

from collections.abc import Iterator

import pytest

from tests.servers.fault_proxy import FaultProxy, fault_proxy


@pytest.fixture
def proxy(s3) -> Iterator[FaultProxy]:
    with fault_proxy(s3.port) as running:
        yield running
