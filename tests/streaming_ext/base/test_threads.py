"""The number of cores that a process may use."""

import os
from pathlib import Path

import pytest

from streaming_ext.base import threads
from streaming_ext.base.threads import cores
from tests.streaming_ext.processes import in_processes


def cores_where_one_is_allowed(_: int) -> int:
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
    return cores()


def test_a_process_that_is_bound_to_a_core_counts_one() -> None:
    """Containers and schedulers bind processes; the machine may have a hundred cores."""
    assert in_processes(1, cores_where_one_is_allowed) == [1]
    assert cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ({}, 64),
        ({"": "max 100000"}, 64),
        ({"": "150000 100000"}, 2),  # a container, whose group is the root that it sees
        ({"": "800000 100000", "a/b": "max 100000", "a": "50000 100000"}, 1),
    ],
)
def test_a_container_with_a_share_of_the_time_counts_as_many_cores(
    limits: dict[str, str], allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are as the kernel writes them: no test may limit the machine."""
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    own.write_text("3:cpuset:/\n0::/a/b\n")
    for group, limit in limits.items():
        (groups / group).mkdir(parents=True, exist_ok=True)
        (groups / group / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr(threads, "_OWN_GROUP", own)
    monkeypatch.setattr(threads, "_GROUPS", groups)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert cores() == allowed
