"""Waiting for room on scratch: bounded in bytes, never endless; one file always has room."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from streaming_ext.base.errors import StoppedError
from tasks.core.engine.run import Room


def test_one_file_always_has_room() -> None:
    room = Room(100, lambda: False)
    room.take(0, 10**12)
    assert room.used == 10**12


def test_never_more_than_allowed() -> None:
    room, most = Room(10, lambda: False), 0
    lock = threading.Lock()

    def work(part: int) -> None:
        nonlocal most
        room.take(part, 3)
        with lock:
            most = max(most, room.used)
        room.give_back(part)
        room.give_back(part)  # a part that fails after its end does this

    with ThreadPoolExecutor(30) as threads:
        list(threads.map(work, range(30)))
    assert 0 < most <= 10
    assert room.used == 0


def test_a_stopped_run_does_not_wait() -> None:
    stopped = False
    room = Room(1, lambda: stopped)
    room.take(0, 1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(room.take, 1, 1)
        stopped = True
        with pytest.raises(StoppedError):
            waiting.result(60)
    with pytest.raises(StoppedError):
        room.take(2, 1)
