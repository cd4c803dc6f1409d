"""Waiting for room on scratch: bounded in bytes, never for ever, nobody left outside."""

import threading

import pytest

from streaming_ext.base.errors import StoppedError
from tasks.core.build.run import Room
from tests.command_line import wait_for


def test_waits_until_there_is_room() -> None:
    room = Room(100, lambda: False)
    room.take(0, 60)
    taken = threading.Event()
    waiting = threading.Thread(target=lambda: (room.take(1, 50), taken.set()))
    waiting.start()
    assert not taken.wait(0.2)
    assert room.used == 60
    room.give_back(0)
    room.give_back(0)
    assert taken.wait(60)
    waiting.join()
    assert room.used == 50


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

    threads = [threading.Thread(target=work, args=(part,)) for part in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < most <= 10
    assert room.used == 0


def test_a_stopped_run_does_not_wait() -> None:
    stopped = False
    room = Room(1, lambda: stopped)
    room.take(0, 1)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            room.take(1, 1)
        except StoppedError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    stopped = True
    wait_for(lambda: ended, seconds=60)
    thread.join()
    with pytest.raises(StoppedError):
        room.take(2, 1)
