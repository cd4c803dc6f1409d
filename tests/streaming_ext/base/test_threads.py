"""The number of cores that a process may use."""

import os

from streaming_ext.base.threads import cores
from tests.streaming_ext.processes import in_processes


def cores_where_one_is_allowed(_: int) -> int:
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
    return cores()


def test_a_process_that_is_bound_to_a_core_counts_one() -> None:
    """Containers and schedulers bind processes; the machine may have a hundred cores."""
    assert in_processes(1, cores_where_one_is_allowed) == [1]
    assert cores() == len(os.sched_getaffinity(0))
