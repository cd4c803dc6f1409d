"""Holding a dataset where the store does not do what it answers: bounded, with an error."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streaming_ext.base.errors import StorageError
from streaming_ext.store import lease as lease_module
from streaming_ext.store.lease import Lease
from tests.command_line import wait_for


class Objects:
    """A store in memory, with one thing wrong."""

    def __init__(self, *, lists: bool = True, keeps: bool = True, refuses: bool = False) -> None:
        self.held: dict[str, bytes] = {}
        self.lists, self.keeps, self.refuses = lists, keeps, refuses
        self.requests = 0

    def __str__(self) -> str:
        return "s3://bucket/out"

    def list(self, folder: str = "") -> dict[str, int]:
        self.requests += 1
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
    monkeypatch.setattr(lease_module, "_SETTLE_SECONDS", 0.02)


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("objects", "problem"),
    [
        (Objects(lists=False), "no listing shows it"),
        (Objects(keeps=False), "it is not there"),
        (Objects(refuses=True), "answered to be there already"),
    ],
)
def test_a_store_that_does_not_do_what_it_answers(objects: Objects, problem: str) -> None:
    with (
        soon(),
        pytest.raises(StorageError, match=problem) as caught,
        Lease(objects).held(lambda words: None),
    ):
        pytest.fail("held")
    assert "s3://bucket/out: its lock cannot be taken" in str(caught.value)
    assert objects.requests < 100
    assert not objects.held


def test_a_listing_that_shows_nothing_for_a_moment_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 600.0)  # however busy the machine is
    objects = Objects()
    lease = Lease(objects)
    with lease.held(lambda words: None):
        objects.lists = False
        asked = objects.requests
        wait_for(lambda: objects.requests > asked + 2)
        lease.require()
        objects.lists = True
        with soon(), pytest.raises(StorageError, match="gone"):
            while True:
                objects.held.clear()  # again: a beat that had just looked puts its lock back
                lease.require()
                time.sleep(0.02)
