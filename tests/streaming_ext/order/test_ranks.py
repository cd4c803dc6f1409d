"""The data-parallel rank: from arguments, groups or the environment, never guessed."""

import multiprocessing
import sys
from typing import Any

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.order import ranks
from streaming_ext.order.ranks import DataRank, RankPosition


def find_rank(*, environment: dict[str, str] | None = None, **given: Any) -> DataRank:
    return ranks.find_rank(RankPosition(**given), environment=environment)


class Mesh:
    """The part of a torch DeviceMesh that is used."""

    def __init__(self, *shape: int, rank: int = 0) -> None:
        self.ndim, self._shape, self._rank = len(shape), shape, rank
        self.mesh_dim_names = ("dp", "tp")[: len(shape)]

    def size(self) -> int:
        return self._shape[0]

    def get_local_rank(self) -> int:
        return self._rank


def test_arguments_come_first() -> None:
    environment = {"RANK": "5", "WORLD_SIZE": "8"}
    found = find_rank(dp_rank=1, dp_world_size=2, environment=environment)
    assert found == DataRank(rank=1, size=2)


def test_the_environment_of_torchrun() -> None:
    assert find_rank(environment={"RANK": "5", "WORLD_SIZE": "8"}) == DataRank(rank=5, size=8)
    assert find_rank(environment={}) == DataRank(rank=0, size=1)


def test_replication_counts_consecutive_ranks() -> None:
    found = [
        find_rank(environment={"RANK": str(r), "WORLD_SIZE": "6"}, replication=3) for r in range(6)
    ]
    assert [each.rank for each in found] == [0, 0, 0, 1, 1, 1]
    assert found[0].size == 2


def test_a_mesh_of_one_dimension() -> None:
    assert find_rank(device_mesh=Mesh(4, rank=3)) == DataRank(rank=3, size=4)
    with pytest.raises(UsageError, match=r'mesh\["dp"\]'):
        find_rank(device_mesh=Mesh(2, 2))


def test_a_process_group(tmp_path: Any) -> None:
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        assert find_rank(process_group=distributed.group.WORLD) == DataRank(rank=0, size=1)
        # the group speaks before an environment that is half set
        assert find_rank(environment={"RANK": "3"}) == DataRank(rank=0, size=1)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dp_rank": 0}, "give both or neither"),
        ({"dp_rank": 4, "dp_world_size": 4}, r"in \[0, 4\), got 4"),
        ({"dp_rank": -1, "dp_world_size": 4}, r"got -1"),
        ({"dp_rank": 0, "dp_world_size": 1, "device_mesh": Mesh(1)}, "not several"),
        ({"dp_rank": 0, "dp_world_size": 4, "replication": 2}, "leave replication out"),
        ({"environment": {"RANK": "1"}}, "RANK=1 and WORLD_SIZE=None .* whole numbers"),
        ({"environment": {"RANK": "x", "WORLD_SIZE": "2"}}, "RANK=x .* whole numbers"),
        ({"environment": {"RANK": "0", "WORLD_SIZE": "3"}, "replication": 2}, "must divide"),
        ({"environment": {"SLURM_STEP_NUM_TASKS": "4"}}, "srun started 4"),
        ({"environment": {"OMPI_COMM_WORLD_SIZE": "2"}}, "mpirun"),
        ({"environment": {"PMI_SIZE": "2"}}, "mpiexec started 2"),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_rank(**arguments)


def _rank_of_child(queue: Any) -> None:
    try:
        queue.put(str(find_rank()))
    except UsageError as error:
        queue.put(str(error))


def test_processes_started_by_another_one_must_see_a_rank(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    queue = context.Queue()
    process = context.Process(target=_rank_of_child, args=(queue,))
    process.start()
    answer = queue.get(timeout=240)
    process.join(240)
    assert "sees no rank" in answer
    assert "torchrun" in answer
