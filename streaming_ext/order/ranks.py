"""The data-parallel rank of this process: from arguments, a mesh or group, or the environment."""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from streaming_ext.base.errors import UsageError
from streaming_ext.base.kinds import check_fields, checked, integer

Value = TypeVar("Value")
# Launchers that count their processes in another variable than torchrun does.
_LAUNCHERS = {
    "SLURM_STEP_NUM_TASKS": "srun",
    "OMPI_COMM_WORLD_SIZE": "mpirun (Open MPI)",
    "PMI_SIZE": "mpiexec",
    "JSM_NAMESPACE_SIZE": "jsrun",
    "MV2_COMM_WORLD_SIZE": "mpirun (MVAPICH2)",
}
_WAYS_OUT = (
    "\n  1. Launch with torchrun, which sets RANK and WORLD_SIZE."
    "\n  2. Call torch.distributed.init_process_group before making the dataset."
    "\n  3. Pass dp_rank=... and dp_world_size=... (0 and 1 if each process reads everything)."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRank:
    """The rank of this process among those that read different data."""

    rank: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise UsageError(
                f"`dp_rank` must be in [0, {self.size}), got {self.rank}. "
                "Pass dp_rank=... and dp_world_size=..., or launch with torchrun."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPosition:
    """The position of this process among the ranks.

    Attributes:
        replication: the number of consecutive ranks of the environment that read the same.
        dp_rank: the data-parallel rank, with `dp_world_size`.
        dp_world_size: the number of data-parallel ranks.
        device_mesh: the one-dimensional mesh of the data-parallel ranks.
        process_group: the group of the data-parallel ranks.
        cp_rank: the rank within a context-parallel group, with `cp_size`; it reads its part of each
            row.
        cp_size: the number of ranks of that group.
        cp_layout: `balanced` (a chunk from each end of a row), `documents` (from each end of each
            document) or `contiguous`.
        node_local: True if each node reads its own partition of the data, the default if the
            manifest names one; or a folder with all manifests, if there is no process group.
    """

    replication: int | None = checked(None, integer(1))
    dp_rank: int | None = checked(None, integer(0))
    dp_world_size: int | None = checked(None, integer(1))
    device_mesh: Any = None
    process_group: Any = None
    cp_rank: int | None = checked(None, integer(0))
    cp_size: int | None = checked(None, integer(1))
    cp_layout: str = "balanced"
    node_local: bool | str | Path | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def divides_rows(self) -> bool:
        """True if the user says how context-parallel ranks divide rows."""
        return (self.cp_rank, self.cp_size, self.cp_layout) != (None, None, "balanced")

    @property
    def named(self) -> bool:
        """True if the user says which ranks read the same rows."""
        given = (self.dp_rank, self.device_mesh, self.process_group, self.replication)
        return any(each is not None for each in given)


def find_rank(position: RankPosition, *, environment: Mapping[str, str] | None = None) -> DataRank:
    """Find the data-parallel rank from the position that the user gives, or the environment.

    Args:
        position: the position that the user gives.
        environment: the variables to read in place of `os.environ`.

    Raises:
        UsageError: the arguments contradict each other, or several processes see no rank.
    """
    rank, size = position.dp_rank, position.dp_world_size
    mesh, group = position.device_mesh, position.process_group
    given = [rank is not None or size is not None, mesh is not None, group is not None]
    if sum(given) > 1:
        raise UsageError(
            "Give one of dp_rank with dp_world_size, device_mesh, and process_group, not several."
        )
    if any(given) and position.replication not in (None, 1):
        raise UsageError(
            "`replication` counts ranks of the environment. If the data-parallel rank is given, it "
            "already says which ranks read the same: leave replication out."
        )
    if given[0]:
        if rank is None or size is None:
            raise UsageError(f"dp_rank={rank} and dp_world_size={size}: give both or neither.")
        return DataRank(rank=rank, size=size)
    if mesh is not None:
        if mesh.ndim != 1:
            raise UsageError(
                f"device_mesh has {mesh.ndim} dimensions {mesh.mesh_dim_names}. "
                'Give the data-parallel one alone, for example device_mesh=mesh["dp"].'
            )
        return DataRank(rank=mesh.get_local_rank(), size=mesh.size())
    if group is not None or has_group():
        from torch import distributed

        found = DataRank(rank=distributed.get_rank(group), size=distributed.get_world_size(group))
    else:
        found = _environment_rank(os.environ if environment is None else environment)
    copies = position.replication or 1
    if found.size % copies:
        raise UsageError(f"`replication` must divide the {found.size} ranks, got {copies}.")
    return DataRank(rank=found.rank // copies, size=found.size // copies)


def has_group() -> bool:
    """Return whether this process imported torch and is in one of its process groups."""
    if "torch" not in sys.modules:
        return False
    from torch import distributed

    return bool(distributed.is_available() and distributed.is_initialized())


def gather(rank: DataRank, value: Value, group: Any, *, why: str) -> list[list[Value]]:
    """Gather the values of each data-parallel rank; all ranks call this together.

    Args:
        rank: the rank of this process.
        value: the value of this process.
        group: the torch process group with every data-parallel rank; None for the default one.
        why: the message if there is no group.

    Raises:
        UsageError: there is no group, or not every rank is in it.
    """
    if not has_group():
        raise UsageError(why)
    from torch import distributed

    found: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, (rank.rank, value), group=group)
    by_rank: dict[int, list[Value]] = {}
    for number, each in found:
        by_rank.setdefault(number, []).append(each)
    if sorted(by_rank) != list(range(rank.size)):
        raise UsageError(
            f"The process group holds the data-parallel ranks {sorted(by_rank)} of {rank.size}. "
            "Pass process_group=, device_mesh= or group= with all of them."
        )
    return [by_rank[number] for number in range(rank.size)]


def _environment_rank(environment: Mapping[str, str]) -> DataRank:
    rank, size = environment.get("RANK"), environment.get("WORLD_SIZE")
    if rank is not None or size is not None:
        try:
            return DataRank(rank=int(rank or ""), size=int(size or ""))
        except ValueError:
            raise UsageError(
                f"RANK={rank} and WORLD_SIZE={size} in the environment must both be whole numbers."
                + _WAYS_OUT
            ) from None
    for variable, launcher in _LAUNCHERS.items():
        own_rank = variable.removesuffix("SIZE") + "RANK"
        count, rank = environment.get(variable, "1"), environment.get(own_rank, "0")
        if (count, rank) != ("1", "0"):
            raise UsageError(
                f"{launcher} started several processes ({variable}={count}, {own_rank}={rank}), "
                "but none can see its rank: each would read everything." + _WAYS_OUT
            )
    if multiprocessing.parent_process() is not None and environment is os.environ:
        raise UsageError(
            "This process was started by another Python process and sees no rank: if it has "
            "siblings, each would read everything." + _WAYS_OUT
        )
    return DataRank(rank=0, size=1)
