"""The data-parallel rank: from arguments, groups or the environment, never guessed."""

from typing import Any

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.order import ranks
from streaming_ext.order.ranks import DataRank, RankPosition


def find_rank(*, environment: dict[str, str] | None = None, **given: Any) -> DataRank:
    return ranks.find_rank(RankPosition(**given), environment=environment)


def test_arguments_come_first() -> None:
    environment = {"RANK": "5", "WORLD_SIZE": "8"}
    found = find_rank(dp_rank=1, dp_world_size=2, environment=environment)
    assert found == DataRank(rank=1, size=2)
    assert find_rank(environment=environment) == DataRank(rank=5, size=8)
    assert find_rank(environment={}) == DataRank(rank=0, size=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dp_rank": 0}, "give both or neither"),
        ({"dp_rank": 4, "dp_world_size": 4}, r"in \[0, 4\), got 4"),
        ({"dp_rank": -1, "dp_world_size": 4}, r"got -1"),
        ({"dp_rank": 0, "dp_world_size": 1, "device_mesh": object()}, "not several"),
        ({"dp_rank": 0, "dp_world_size": 4, "replication": 2}, "leave replication out"),
        ({"environment": {"RANK": "1"}}, "RANK=1 and WORLD_SIZE=None .* whole numbers"),
        ({"environment": {"RANK": "x", "WORLD_SIZE": "2"}}, "RANK=x .* whole numbers"),
        ({"environment": {"RANK": "0", "WORLD_SIZE": "3"}, "replication": 2}, "must divide"),
        ({"environment": {"SLURM_STEP_NUM_TASKS": "4"}}, r"srun started several .*TASKS=4"),
        ({"environment": {"OMPI_COMM_WORLD_SIZE": "2"}}, "mpirun"),
        ({"environment": {"PMI_SIZE": "2"}}, "mpiexec started several .*=2"),
        (
            {"environment": {"JSM_NAMESPACE_SIZE": "6", "JSM_NAMESPACE_RANK": "0"}},
            "jsrun .*JSM_NAMESPACE_SIZE=6",
        ),
        ({"environment": {"JSM_NAMESPACE_RANK": "1"}}, "several .*JSM_NAMESPACE_RANK=1"),
        ({"environment": {"MV2_COMM_WORLD_SIZE": "2"}}, "MVAPICH2.* started several .*=2"),
        ({"environment": {"MV2_COMM_WORLD_RANK": "3"}}, "MVAPICH2.* several"),
    ],
)
def test_contradictions_are_refused(arguments, words) -> None:
    with pytest.raises(UsageError, match=words):
        find_rank(**arguments)
