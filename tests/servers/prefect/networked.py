"""A cluster whose hosts reach Prefect's server and S3 over a network of namespaces alone."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.fault_proxy import fault_proxy
from tests.servers.namespaces import Network
from tests.servers.prefect.worker import Cluster, cluster
from tests.servers.storage.swift import SwiftServer, aws_environment


@contextmanager
def networked_cluster(
    wire: Network, api: str, s3: SwiftServer, env: Mapping[str, str], folder: Path
) -> Iterator[Cluster]:
    """A cluster without a host yet; each is started below what `wire.add` returns.

    Args:
        wire: the network.
        api: URL of the server on this machine.
        s3: server on this machine, to which `env` gains the way.
        env: of everything that runs.
        folder: for logs, and for each host's scratch.
    """
    port = urlsplit(api).port
    assert port is not None
    with (
        fault_proxy(port, wire.address) as server,
        fault_proxy(s3.port, wire.address) as store,
        cluster(f"{server.url}/api", {**env, **aws_environment(store.url)}, folder) as made,
    ):
        yield made
