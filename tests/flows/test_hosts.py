"""A run on several hosts: a real server, real workers that take partitions, come, die and go."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import CommandLine, assert_same_dataset
from tests.servers.prefect_worker import PARENTS, Cluster, cluster

END_SECONDS = 20.0


@pytest.fixture(scope="module")
def hosts(
    api_url: str, served: CommandLine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two hosts, and one for the parent runs."""
    with cluster(api_url, served.env, tmp_path_factory.mktemp("hosts")) as made:
        made.start("planner", pool=PARENTS)
        made.start("one")
        made.start("two")
        yield made


@pytest.fixture
def parameters(slow: CommandLine, tmp_path: Path) -> dict[str, Any]:
    """Of a run on the hosts: the slow sources, a partition each."""
    return {
        "config": {
            "sources": [str(slow.sources)],
            "output": str(tmp_path / "out"),
            "tokenizer": str(slow.tokenizer),
            "pattern": "gpt2",
            "sequence_length": 128,
            "shard_size": "16KiB",
            "holdout_fraction": 0.1,
            "workers": 1,
            "engine": "reference",
            "executor": "prefect://shard-partition/hosts",
            "partitions": 4,
        }
    }


def test_two_hosts_make_the_bytes_of_one(
    hosts: Cluster, parameters: dict[str, Any], undisturbed: Path, tmp_path: Path
) -> None:
    run = hosts.run("shard-dataset/demo", parameters)
    state = hosts.wait(run)
    assert state["type"] == "COMPLETED", state
    assert_same_dataset(undisturbed, tmp_path / "out")
    partitions = hosts.partitions(run)
    assert len(partitions) == 4
    assert {one["state_type"] for one in partitions} == {"COMPLETED"}
    left = [path.name for path in (tmp_path / "out" / "runs").iterdir()]
    assert [name for name in left if not name.endswith(".json")] == [".lock"]  # and a report
