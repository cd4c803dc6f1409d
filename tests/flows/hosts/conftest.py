"""A network for hosts."""

from collections.abc import Iterator

import pytest

from tests.servers.namespaces import Network, network, why_not


@pytest.fixture
def wire() -> Iterator[Network]:
    """A network of namespaces; the test is skipped where there can be none."""
    if (why := why_not()) is not None:
        pytest.skip(why)
    with network() as made:
        yield made
