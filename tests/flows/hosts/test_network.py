"""Hosts with a network of their own (`ip netns`), a real S3 server and a real Prefect server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.command_line import CommandLine, assert_same_dataset, wait_for
from tests.servers import namespaces
from tests.servers.fault_proxy import fault_proxy
from tests.servers.namespaces import Network, network
from tests.servers.prefect.worker import PARENTS, Cluster, cluster
from tests.servers.storage.swift import SwiftServer, aws_environment, download_all

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(namespaces.why_not() is not None, reason=namespaces.why_not() or "they can"),
]


@pytest.fixture
def wire() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.fixture
def hosts(
    wire: Network, api_url: str, s3: SwiftServer, served: CommandLine, tmp_path: Path
) -> Iterator[Cluster]:
    """Both servers as they are seen from the network, and a host for the parent runs."""
    api_port = urlsplit(api_url).port
    assert api_port is not None
    with fault_proxy(api_port, wire.address) as api, fault_proxy(s3.port, wire.address) as store:
        env = {**served.env, **aws_environment(store.url), "SHARDMILL_SILENCE": "8"}
        with cluster(f"{api.url}/api", env, tmp_path) as made:
            made.start("planner", pool=PARENTS, prefix=wire.add("planner"))
            yield made


def parameters(command: CommandLine, bucket: str, partitions: int) -> dict[str, Any]:
    return {
        "config": {
            "sources": [str(command.sources)],
            "output": f"s3://{bucket}/out",
            "tokenizer": str(command.tokenizer),
            "pattern": "gpt2",
            "sequence_length": 128,
            "shard_size": "16KiB",
            "holdout_fraction": 0.1,
            "workers": 1,  # so that it is enough to freeze one
            "executor": "prefect://shard-partition/hosts",
            "partitions": partitions,
        }
    }


def test_one_host_dies_and_one_comes_late(
    hosts: Cluster,
    wire: Network,
    served: CommandLine,
    s3: SwiftServer,
    bucket: str,
    dataset: Path,
    tmp_path: Path,
) -> None:
    """The first host is killed with a partition in hand; the second one does all of them."""
    hosts.start("first", prefix=wire.add("first"))
    run = hosts.run("shard-dataset/demo", parameters(served, bucket, 2))
    assert hosts.frozen() == ["first"]
    hosts.kill("first")
    hosts.start("late", prefix=wire.add("late"))
    state = hosts.wait(run)
    assert state["type"] == "COMPLETED", state
    assert_same_dataset(dataset, download_all(s3.url, bucket, "out", tmp_path / "copy"))
    states = sorted(one["state_type"] for one in hosts.partitions(run))
    assert states == ["COMPLETED", "COMPLETED", "CRASHED"]


@pytest.mark.parametrize("count", [2, 4])
def test_more_hosts_the_same_bytes(
    hosts: Cluster,
    wire: Network,
    served: CommandLine,
    s3: SwiftServer,
    bucket: str,
    dataset: Path,
    tmp_path: Path,
    count: int,
) -> None:
    names = [f"h{number}" for number in range(count)]
    for name in names:
        hosts.start(name, prefix=wire.add(name))
    run = hosts.run("shard-dataset/demo", parameters(served, bucket, 5))
    assert set(hosts.frozen(count)) == set(names)  # all of them take part
    hosts.thaw()
    state = hosts.wait(run)
    assert state["type"] == "COMPLETED", state
    assert_same_dataset(dataset, download_all(s3.url, bucket, "out", tmp_path / "copy"))
    assert {one["state_type"] for one in hosts.partitions(run)} == {"COMPLETED"}


def test_a_host_that_was_cut_off_comes_back(
    hosts: Cluster,
    wire: Network,
    served: CommandLine,
    s3: SwiftServer,
    bucket: str,
    dataset: Path,
    tmp_path: Path,
) -> None:
    """It is taken for dead, another one does its share; when it comes back, it does no harm."""
    hosts.start("lonely", prefix=wire.add("lonely"))
    run = hosts.run("shard-dataset/demo", parameters(served, bucket, 1))
    assert hosts.frozen() == ["lonely"]
    wire.cut("lonely")
    hosts.start("other", prefix=wire.add("other"))
    assert hosts.wait(run)["type"] == "COMPLETED"
    whole = download_all(s3.url, bucket, "out", tmp_path / "copy")
    assert_same_dataset(dataset, whole)
    assert not hosts.is_idle("lonely")
    wire.mend("lonely")
    hosts.thaw()
    wait_for(lambda: hosts.is_idle("lonely"))
    assert_same_dataset(whole, download_all(s3.url, bucket, "out", tmp_path / "again"))
