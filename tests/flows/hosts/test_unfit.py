"""Hosts that see another disk than the others, and workers that are stopped: the run goes on."""

import platform
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.command_line import CommandLine, assert_same_dataset, wait_for
from tests.flows.hosts.test_dask import DaskCluster
from tests.servers.namespaces import CAN_HIDE, full, hiding
from tests.servers.prefect.worker import Cluster, cluster

pytestmark = pytest.mark.soak
needs_hiding = pytest.mark.skipif(not CAN_HIDE, reason="a disk cannot be hidden here (unshare)")
START_SECONDS = 240.0


@pytest.fixture
def hosts(api_url: str, served: CommandLine, tmp_path: Path) -> Iterator[Cluster]:
    """A host, and one for the parent runs."""
    folder = tmp_path / "hosts"
    folder.mkdir()
    with cluster(api_url, served.env, folder, hosts=("one",)) as made:
        yield made


@needs_hiding
def test_a_host_that_sees_another_disk(
    hosts: Cluster, served: CommandLine, dataset: Path, tmp_path: Path
) -> None:
    """It is named, takes nothing more of the run, and lets go of it in the end."""
    output = tmp_path / "out"
    run = hosts.shard(served, output, partitions=2)
    hosts.frozen()
    hosts.start("unfit", prefix=hiding(output))

    def states() -> Counter[str]:
        return Counter(one["state_name"] for one in hosts.partitions(run))

    wait_for(lambda: states()["Refused"], seconds=START_SECONDS)
    hosts.thaw()
    assert hosts.wait(run)["type"] == "COMPLETED"
    assert_same_dataset(dataset, output)
    assert states() == {"Completed": 2, "Refused": 1}
    (refused,) = [one for one in hosts.partitions(run) if one["state_name"] == "Refused"]
    assert f"host {platform.node()}: " in refused["state"]["message"]
    wait_for(hosts.no_work_left)


@needs_hiding
def test_a_host_whose_scratch_fills_amid_the_work(
    hosts: Cluster, served: CommandLine, dataset: Path, tmp_path: Path
) -> None:
    """It gives up, with its name; another one does what it had."""
    output = tmp_path / "out"
    hosts.stop("one")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    hosts.start("full", prefix=full(scratch))
    run = hosts.shard(served, output, partitions=2, scratch=str(scratch))

    def refused() -> list[str]:
        found = hosts.partitions(run)
        return [one["state"]["message"] for one in found if one["state_name"] == "Refused"]

    wait_for(refused, seconds=START_SECONDS)
    assert f"host {platform.node()}: Cannot write to scratch" in refused()[0]
    hosts.start("two")
    assert hosts.wait(run)["type"] == "COMPLETED"
    assert_same_dataset(dataset, output)


def test_a_stopped_worker_gives_its_partition_back(
    hosts: Cluster, served: CommandLine, dataset: Path, tmp_path: Path
) -> None:
    """Prefect's worker kills what it started; another one does it after a silence."""
    output = tmp_path / "out"
    run = hosts.shard(served, output, partitions=2)
    hosts.frozen()
    worker = hosts.hosts.pop("one")
    worker.send_signal(signal.SIGTERM)
    worker.wait()
    hosts.start("two")
    assert hosts.wait(run)["type"] == "COMPLETED"
    assert_same_dataset(dataset, output)


@needs_hiding
def test_a_worker_of_dask_that_sees_another_disk(
    served: CommandLine, dataset: Path, tmp_path: Path
) -> None:
    """The other one does its files too."""
    output = tmp_path / "out"
    output.mkdir()
    with ExitStack() as stack:
        dask = DaskCluster(dict(served.env), tmp_path, stack, below={"one": hiding(output)})
        dask.wait_for_workers()
        ended = served.shard(output, executor=f"dask://{dask.address}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert_same_dataset(dataset, output)
    assert f"Refused: host {platform.node()}: " in ended.stdout + ended.stderr
