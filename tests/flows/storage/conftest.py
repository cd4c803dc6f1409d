"""A proxy before the S3 server, which can inflict faults."""

from collections.abc import Iterator

import pytest

from tests.servers.fault_proxy import FaultProxy, fault_proxy


@pytest.fixture
def proxy(s3) -> Iterator[FaultProxy]:
    with fault_proxy(s3.port) as running:
        yield running
