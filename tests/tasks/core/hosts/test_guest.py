"""A guest works for a run that is planned elsewhere: what ends its work, and what it refuses."""

import platform
from pathlib import Path

import pytest

from streaming_ext.base.errors import CannotTakePartError, StoppedError
from streaming_ext.format.schema import from_json
from streaming_ext.store import LocalStorage
from tasks.core.hosts import cluster, guest
from tasks.core.hosts.cluster import (
    Heartbeat,
    ParentSign,
    PartitionSign,
    parent_path,
    put_shared_plan,
)
from tasks.core.hosts.guest import Guest
from tests.command_line import wait_for
from tests.tasks.core.build_dataset import config_of
from tests.tasks.core.running import make_plan

RUN = "run-1"


class ParentRun:
    """A run that planned; it gives a sign of life when a test says so.

    Attributes:
        storage: the storage of its output.
    """

    def __init__(self, folder: Path, sources: Path) -> None:
        self.storage = LocalStorage(folder)
        self.storage.create()
        plan = make_plan(config_of(sources, folder), self.storage)
        put_shared_plan(plan, self.storage, RUN, 1)
        self._heartbeat = Heartbeat(self.storage, parent_path(RUN), self._sign)
        self._says = {"attempts": (1,)}
        self._heartbeat.beat()

    def _sign(self, beat: int) -> ParentSign:
        return ParentSign.model_validate({"beat": beat, **self._says})

    def say(self, **fields: object) -> None:
        """Put a sign with these fields."""
        self._says = {**self._says, **fields}  # type: ignore[dict-item]
        self._heartbeat.beat()

    def heard(self) -> PartitionSign:
        """Return the sign that the guest put last."""
        path = cluster.partition_path(RUN, 0, 1)
        return from_json(PartitionSign, self.storage.read(path), where=path)


@pytest.fixture
def parent(tmp_path, sources, monkeypatch) -> ParentRun:
    for module in (cluster, guest):
        monkeypatch.setattr(module, "BEAT_SECONDS", 0.1)
    return ParentRun(tmp_path / "out", sources)


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ({"stopped": True}, "the parent run was stopped"),
        ({"attempts": (2,)}, "waits for attempt 2"),
        ({}, "no sign of life for"),
    ],
    ids=["stopped", "superseded", "silent"],
)
def test_what_ends_the_work(says, reason, parent, monkeypatch) -> None:
    """Workers are stopped, and the last sign says that no work goes on."""
    if not says:
        monkeypatch.setenv(cluster.SILENCE_VARIABLE, "1")
    with (
        pytest.raises(StoppedError, match=reason),
        Guest(parent.storage, RUN, 0, 1).working() as work,
    ):
        assert not parent.heard().stopped
        assert list(work.build.todo) == [*range(len(work.build.parts))]
        if says:
            parent.say(**says)
        wait_for(lambda: work.pool.stopped)
        work.require_going()
    assert parent.heard().stopped


def test_of_a_run_that_is_over_nothing_is_put(parent) -> None:
    for path in parent.storage.list("runs"):
        parent.storage.remove(path)
    with pytest.raises(StoppedError, match="is over"), Guest(parent.storage, RUN, 0, 1).working():
        pass
    assert parent.storage.list("runs") == {}


@pytest.mark.parametrize("name", ["gone", "empty"])
def test_a_host_that_sees_another_disk_refuses(name, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    with (
        pytest.raises(CannotTakePartError, match=f"host {platform.node()}: .*holds nothing"),
        Guest(LocalStorage(tmp_path / name), RUN, 0, 1).working(),
    ):
        pass
