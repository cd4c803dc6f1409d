"""Hosts with a network of their own (`ip netns`), a real S3 server and a real Prefect server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import CommandLine, assert_same_dataset, wait_for
from tests.servers.namespaces import Network
from tests.servers.prefect.networked import networked_cluster
from tests.servers.prefect.worker import PARENTS, Cluster
from tests.servers.storage.swift import SwiftServer, download_all

pytestmark = pytest.mark.soak


@pytest.fixture
def hosts(
    wire: Network, api_url: str, s3: SwiftServer, served: CommandLine, tmp_path: Path
) -> Iterator[Cluster]:
    """A host for the parent runs."""
    env = {**served.env, "SHARDMILL_SILENCE": "8"}
    with networked_cluster(wire, api_url, s3, env, tmp_path) as made:
        made.start("planner", pool=PARENTS, prefix=wire.add("planner"))
        yield made


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
    run = hosts.shard(served, f"s3://{bucket}/out", partitions=2)
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
    run = hosts.shard(served, f"s3://{bucket}/out", partitions=5)
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
    run = hosts.shard(served, f"s3://{bucket}/out", partitions=1)
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
