"""Which data-parallel rank this process is: from arguments, a mesh or group, or the environment."""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streaming_ext.errors import UsageError

# Launchers that start several processes and say so, though not in the words of torchrun.
_LAUNCHERS = {
    "SLURM_STEP_NUM_TASKS": "srun",
    "OMPI_COMM_WORLD_SIZE": "mpirun (Open MPI)",
    "PMI_SIZE": "mpiexec",
}
_WAYS_OUT = (
    "\n  1. Launch with torchrun, which sets RANK and WORLD_SIZE."
    "\n  2. Call torch.distributed.init_process_group before making the dataset."
    "\n  3. Pass dp_rank=... and dp_world_size=... (0 and 1 where each process reads everything)."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRank:
    """The place of this process among those that read different data."""

    rank: int
    size: int

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise UsageError(
                f"`dp_rank` must be in [0, {self.size}), got {self.rank}. "
                "Pass dp_rank=... and dp_world_size=..., or launch with torchrun."
            )


def find_rank(
    *,
    dp_rank: int | None = None,
    dp_world_size: int | None = None,
    device_mesh: Any = None,
    process_group: Any = None,
    replication: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> DataRank:
    """The data-parallel rank, from the first of these that says it.

    Args:
        dp_rank: the rank, given with `dp_world_size`.
        dp_world_size: the number of data-parallel ranks.
        device_mesh: a one-dimensional torch DeviceMesh, `mesh["dp"]` of a larger one.
        process_group: a torch process group of the data-parallel ranks.
        replication: consecutive ranks that read the same data, as in mosaicml-streaming.
        environment: in place of `os.environ`.

    Raises:
        UsageError: the answers contradict each other, or several processes see no rank.
    """
    given = [
        dp_rank is not None or dp_world_size is not None,
        device_mesh is not None,
        process_group is not None,
    ]
    if sum(given) > 1:
        raise UsageError(
            "Give one of dp_rank with dp_world_size, device_mesh, and process_group, not several."
        )
    if any(given) and replication not in (None, 1):
        raise UsageError(
            "`replication` counts ranks of the environment. Where the data-parallel rank is given, "
            "it already says which ranks read the same: leave replication out."
        )
    if dp_rank is not None or dp_world_size is not None:
        if dp_rank is None or dp_world_size is None:
            raise UsageError(
                f"dp_rank={dp_rank} and dp_world_size={dp_world_size}: give both or neither."
            )
        return DataRank(rank=dp_rank, size=dp_world_size)
    if device_mesh is not None:
        if device_mesh.ndim != 1:
            raise UsageError(
                f"device_mesh has {device_mesh.ndim} dimensions {device_mesh.mesh_dim_names}. "
                'Give the data-parallel one alone, for example device_mesh=mesh["dp"].'
            )
        return DataRank(rank=device_mesh.get_local_rank(), size=device_mesh.size())
    if process_group is not None:
        from torch import distributed

        return DataRank(
            rank=distributed.get_rank(process_group), size=distributed.get_world_size(process_group)
        )
    found = _group_rank() or _environment_rank(os.environ if environment is None else environment)
    copies = replication or 1
    if copies < 1 or found.size % copies:
        raise UsageError(f"`replication` must divide the {found.size} ranks, got {replication}.")
    return DataRank(rank=found.rank // copies, size=found.size // copies)


def _group_rank() -> DataRank | None:
    if "torch" not in sys.modules:
        return None
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return DataRank(rank=distributed.get_rank(), size=distributed.get_world_size())


def _environment_rank(environment: Mapping[str, str]) -> DataRank:
    rank, size = environment.get("RANK"), environment.get("WORLD_SIZE")
    if (rank is None) != (size is None):
        raise UsageError(
            f"The environment has RANK={rank} and WORLD_SIZE={size}: one without the other."
            + _WAYS_OUT
        )
    if rank is not None and size is not None:
        if not (rank.isdecimal() and size.isdecimal()):
            raise UsageError(f"RANK={rank!r} and WORLD_SIZE={size!r} are no whole numbers.")
        return DataRank(rank=int(rank), size=int(size))
    for variable, launcher in _LAUNCHERS.items():
        count = environment.get(variable, "1")
        if count != "1":
            raise UsageError(
                f"{launcher} started {count} processes ({variable}), but none can see its rank: "
                "each would read everything." + _WAYS_OUT
            )
    if multiprocessing.parent_process() is not None and environment is os.environ:
        raise UsageError(
            "This process was started by another Python process and sees no rank: if it has "
            "siblings, each would read everything." + _WAYS_OUT
        )
    return DataRank(rank=0, size=1)
