"""A run on several hosts: a real server, and real workers that take partitions, come and die."""

import os
import platform
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.command_line import (
    CommandLine,
    assert_same_dataset,
    ended_as,
    is_alive,
    wait_for,
)
from tests.servers.namespaces import CAN_HIDE, hiding
from tests.servers.prefect.server import runs_named
from tests.servers.prefect.worker import FINAL, ON_HOSTS, PARENTS, Cluster, cluster


@pytest.fixture(scope="module")
def hosts(api_url, served, tmp_path_factory) -> Iterator[Cluster]:
    """Two hosts; the first run whose parent needs a worker starts one for it."""
    folder = tmp_path_factory.mktemp("hosts")
    env = {**served.env, "SHARDMILL_SILENCE": "8"}  # seconds, in place of 20
    with cluster(api_url, env, folder, hosts=("one", "two")) as made:
        yield made


class Runs:
    """Runs of five small files on the hosts, all on the same output.

    Attributes:
        hosts: the hosts that the runs use.
        output: the output of all runs.
    """

    def __init__(self, hosts: Cluster, command: CommandLine, output: Path) -> None:
        self.hosts = hosts
        self.output = output
        self._command = replace(command, env=hosts.env)

    def deployed(self) -> str:
        """Have a worker take a run, and return the id of the flow run."""
        return self.hosts.shard(self._command, self.output, partitions=3)

    def submitted(self) -> "subprocess.Popen[str]":
        """Start a run with `shardmill submit`."""
        self.hosts.start_missing("planner", pool=PARENTS)
        config = self._command.shard_config(self.output, executor=ON_HOSTS, partitions=3)
        return self._command.start(
            "submit", "demo", *(f"{name}={value}" for name, value in config.items())
        )

    def at_home(self, partitions: int, **more: object) -> "subprocess.Popen[str]":
        """Start a run with `shardmill shard`; that process holds the parent run."""
        where = {"executor": ON_HOSTS, "partitions": partitions}
        return self._command.start(*self._command.shard_arguments(self.output, **where, **more))

    def latest(self) -> str:
        """Return the id of the latest flow run."""
        return str(runs_named(self.hosts.api, f"shard {self.output}")[0]["id"])

    def end(self, work: list[psutil.Process]) -> None:
        """Wait until the latest run has ended everywhere, and check that nothing is published.

        Args:
            work: the processes of the run that were seen on the hosts.
        """
        assert work
        wait_for(lambda: not [process for process in work if is_alive(process)])
        wait_for(self.hosts.no_work_left)
        run = self.latest()
        wait_for(lambda: self.states(run) <= FINAL)
        assert not (self.output / "manifest.json").exists()

    def states(self, run: str) -> set[str]:
        """Return the states of a run and its partitions."""
        runs = [self.hosts.flow_run(run), *self.hosts.partitions(run)]
        assert len(runs) > 1
        return {one["state_type"] for one in runs}

    def assert_tidy(self) -> None:
        """Check that the storage holds nothing that hosts exchanged; reports may remain."""
        left = [
            path
            for path in (self.output / "runs").iterdir()
            if path.suffix not in {".json", ".html"}
        ]
        assert left == [self.output / "runs" / ".lock"]


@pytest.fixture(scope="module")
def runs(hosts, served, tmp_path_factory) -> Runs:
    return Runs(hosts, served, tmp_path_factory.mktemp("runs") / "out")


@pytest.mark.soak  # on a busy machine, one run had not ended for Prefect after 240 s
def test_cancelled_in_the_dashboard(hosts, runs) -> None:
    """No host keeps a process of the run."""
    run = runs.deployed()
    hosts.frozen(2)  # both hosts, so that no partition ends; the third one waits
    work = hosts.work()
    hosts.prefect("flow-run", "cancel", run)
    runs.end(work)
    assert runs.states(run) == {"CANCELLED"}
    runs.assert_tidy()


def test_a_host_dies(hosts, runs, dataset) -> None:
    """The parts that it had in hand are sent again."""
    at_home = runs.at_home(partitions=2)
    (dying, *_) = hosts.frozen()
    hosts.kill(dying)
    hosts.thaw()
    ended_as(at_home)
    assert_same_dataset(dataset, runs.output)
    states = [one["state_type"] for one in hosts.partitions(runs.latest())]
    assert "CRASHED" in states  # the partition of the killed host, which was sent again
    assert states.count("COMPLETED") == len(states) - states.count("CRASHED")
    runs.assert_tidy()


@pytest.mark.soak
class TestMoreStops:
    """Stops of runs whose output is not published yet."""

    @pytest.fixture
    def runs(self, hosts, served, tmp_path) -> Runs:
        hosts.start_missing("one", "two")
        return Runs(hosts, served, tmp_path / "out")

    def test_ctrl_c_of_the_submitter(self, hosts, runs) -> None:
        submitted = runs.submitted()
        hosts.frozen(2)
        work = hosts.work()
        os.killpg(submitted.pid, signal.SIGINT)
        _, stderr = ended_as(submitted, 130)
        assert "The run ended as Cancelled" in stderr
        runs.end(work)
        runs.assert_tidy()

    def test_cancelled_while_the_parent_is_at_home(self, hosts, runs) -> None:
        at_home = runs.at_home(partitions=3)
        hosts.frozen(2)
        work = hosts.work()
        hosts.prefect("flow-run", "cancel", runs.latest())
        _, stderr = ended_as(at_home, 143)
        assert "cancelled in Prefect" in stderr
        runs.end(work)
        assert runs.states(runs.latest()) == {"CANCELLED"}
        runs.assert_tidy()

    def test_the_parent_is_killed_and_nobody_reports_it(self, hosts, runs, dataset) -> None:
        at_home = runs.at_home(partitions=3)
        hosts.frozen(2)
        work = hosts.work()
        at_home.kill()
        hosts.kill_worker("one")
        at_home.communicate()
        wait_for(lambda: not [process for process in work if is_alive(process)])
        wait_for(hosts.no_work_left)
        assert not (runs.output / "manifest.json").exists()

        hosts.start_missing("one")
        at_home = runs.at_home(partitions=2)  # the same run again, to its end
        ended_as(at_home)
        assert_same_dataset(dataset, runs.output)
        runs.assert_tidy()

    def test_a_host_that_is_stopped_gives_its_partition_back(self, hosts, runs, dataset) -> None:
        run = runs.deployed()
        (stopped, *_) = hosts.frozen()
        hosts.stop(stopped)
        hosts.thaw()
        assert hosts.wait(run)["type"] == "COMPLETED"
        assert_same_dataset(dataset, runs.output)

    @pytest.mark.skipif(not CAN_HIDE, reason="a disk cannot be hidden here (unshare)")
    def test_a_host_that_sees_another_disk_is_named_and_takes_nothing_more(
        self, hosts, runs, dataset
    ) -> None:
        hosts.stop("two")
        run = runs.deployed()
        hosts.frozen()
        hosts.start("unfit", prefix=hiding(runs.output))

        def refused() -> list[str]:
            found = hosts.partitions(run)
            return [one["state"]["message"] for one in found if one["state_name"] == "Refused"]

        wait_for(refused)
        hosts.thaw()
        assert hosts.wait(run)["type"] == "COMPLETED"
        assert_same_dataset(dataset, runs.output)
        (words,) = refused()
        assert f"host {platform.node()}: " in words
        wait_for(hosts.no_work_left)
        hosts.stop("unfit")
