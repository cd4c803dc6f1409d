"""Holding a dataset in an object store, tested with a store in memory and a real one."""

import time
from contextlib import contextmanager

import pytest

from streaming_ext.base.errors import StorageError, TransientStorageError, UsageError
from streaming_ext.store import holding
from streaming_ext.store import lease as lease_module
from streaming_ext.store.lease import Lease
from tests.command_line import wait_for, within_a_minute
from tests.streaming_ext.store.conftest import Cloud


class Objects:
    """A store in memory, perhaps with one fault."""

    def __init__(self, *, lists: bool = True, keeps: bool = True, refuses: bool = False) -> None:
        self.held: dict[str, bytes] = {}
        self.lists, self.keeps, self.refuses = lists, keeps, refuses
        self.down = False
        self.requests = 0

    def __str__(self) -> str:
        return "s3://bucket/out"

    def list(self, folder: str = "") -> dict[str, int]:
        self.requests += 1
        if self.down:
            raise TransientStorageError("503")
        return dict.fromkeys(sorted(self.held), 1) if self.lists else {}

    def read(self, path: str) -> bytes:
        if path not in self.held:
            raise FileNotFoundError(path)
        return self.held[path]

    def put(self, path: str, data: bytes) -> None:
        self.held[path] = data

    def put_new(self, path: str, data: bytes) -> bool:
        if self.refuses or path in self.held:
            return False
        if self.keeps:
            self.held[path] = data
        return True

    def remove(self, path: str) -> None:
        self.held.pop(path, None)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.5)
    monkeypatch.setattr(lease_module, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lease_module, "_WATCH_SECONDS", 0.05)
    monkeypatch.setattr(lease_module, "_CONFIRM_SECONDS", 0.02)


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put each holder on another machine."""
    names = (f"machine {number}" for number in range(10**6))
    monkeypatch.setattr(holding, "this_machine", lambda: next(names))


def held(objects: Objects, messages: list[str] | None = None) -> contextmanager:
    return Lease(objects).held((messages if messages is not None else []).append)


def lost(lease: Lease) -> str:
    """Return why a run lost its hold; empty if it still holds."""
    try:
        lease.require()
    except StorageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "objects", [Objects(lists=False), Objects(keeps=False), Objects(refuses=True)]
)
def test_a_store_that_does_not_do_what_it_answers(objects: Objects) -> None:
    refused = pytest.raises(StorageError, match="bucket/out: its lock .* cannot be taken")
    with within_a_minute(), refused, held(objects):
        pytest.fail("held")
    assert objects.requests < 100
    assert not objects.held


def test_a_listing_that_shows_nothing_for_a_moment_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 600.0)  # however busy the machine is
    objects = Objects()
    lease = Lease(objects)
    with lease.held(lambda message: None):
        objects.lists = False
        before = objects.requests
        wait_for(lambda: objects.requests > before + 2)
        lease.require()
        objects.lists = True
        with within_a_minute():
            while "gone" not in lost(lease):
                objects.held.clear()  # repeated: a beat that has just looked puts its lock back
                time.sleep(0.02)


@pytest.mark.usefixtures("_elsewhere")
class TestElsewhere:
    def test_a_live_holder_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lease_module, "LEASE_SECONDS", 60.0)
        objects = Objects()
        with (
            held(objects),
            within_a_minute(),
            pytest.raises(UsageError, match="Another run"),
            held(objects),
        ):
            pytest.fail("held twice")

    @pytest.mark.parametrize("cloud", ["s3"], indirect=True)
    def test_a_dead_holder_is_followed_after_the_lease(
        self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The store is Swift. The time in the lock does not matter: no clocks are compared."""
        storage = cloud.storage()
        storage.put("runs/.lock-00000004", b'{"machine": "gone", "pid": 1, "time": 9e99}')
        began = time.monotonic()
        with storage.exclusive():
            assert time.monotonic() - began > 0.4
            assert list(storage.list("runs")) == ["runs/.lock-00000005"]
            monkeypatch.setattr(lease_module, "LEASE_SECONDS", 600.0)  # however busy the machine is
            storage.require_held()
        assert storage.read("runs/.lock-00000005") == lease_module.RELEASED
        with storage.exclusive():
            assert list(storage.list("runs")) == ["runs/.lock-00000006"]


def test_a_dead_holder_of_this_machine_is_followed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 600.0)
    objects = Objects()
    content = f'{{"machine": "{holding.this_machine()}", "pid": 999999999, "started": "1"}}'
    objects.put("runs/.lock-00000001", content.encode())
    with within_a_minute(), held(objects):
        assert list(objects.held) == ["runs/.lock-00000002"]


def test_who_was_taken_over_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 600.0)
    objects = Objects()
    lease = Lease(objects)
    with lease.held(lambda message: None):
        lease.require()
        objects.put("runs/.lock-00000002", b"{}")
        wait_for(lambda: "another run took it over" in lost(lease), seconds=30)
    assert objects.held["runs/.lock-00000002"] == b"{}"


def test_who_cannot_renew_stops_before_another_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 600.0)
    objects = Objects()
    lease = Lease(objects)
    with lease.held(lambda message: None):
        objects.down = True
        before = objects.requests
        wait_for(lambda: objects.requests > before + 2)
        lease.require()  # a short failure is tolerated
        monkeypatch.setattr(lease_module, "LEASE_SECONDS", lease_module.BEAT_SECONDS / 2)
        assert "could not be renewed" in lost(lease)
        objects.down = False


@pytest.mark.usefixtures("_elsewhere")
def test_who_comes_late_to_an_old_generation_does_not_get_it() -> None:
    """It saw generation 1 end; meanwhile 2 came and went, and 3 is running."""
    objects, messages = Objects(), []
    put_new = objects.put_new

    def overtaken(path: str, data: bytes) -> bool:
        objects.put_new = put_new
        objects.put("runs/.lock-00000003", b"{}")
        return put_new(path, data)

    objects.put_new = overtaken
    with held(objects, messages):  # waits for the lease of 3, whose holder does nothing
        assert any("waiting for another run (process ? on ?) to let go of" in m for m in messages)
        assert list(objects.held) == ["runs/.lock-00000004"]
