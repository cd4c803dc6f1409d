"""Counters of a run, on a clock that the test sets."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tasks.core.reporting import progress as progress_module
from tasks.core.reporting.progress import RunProgress, Snapshot
from tasks.core.reporting.report import FailedFile
from tests.tasks.core.reporting.test_report import part_times


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


def snapshot(**changes: object) -> Snapshot:
    values: dict[str, object] = {
        "phase": "sharding",
        "parts_done": 0,
        "parts_failed": 0,
        "parts_total": 4,
        "text_bytes": 0,
        "tokens": 0,
        "source_bytes": 0.0,
        "source_bytes_total": 400,
        "seconds": 0.0,
    }
    return Snapshot(**(values | changes))  # type: ignore[arg-type]


def failed(part: int) -> FailedFile:
    return FailedFile(part=part, source="/a", step="write", reason="full")


def test_people_are_told_each_thing_once() -> None:
    progress, told = RunProgress(), list[str]()
    progress.listeners.append(told.append)
    for engine in ("", "fast", "slow", "fast"):
        progress.finish(part_times(0).model_copy(update={"engine": engine}), source_bytes=1)
    progress.note("")
    assert told == ["engine: fast", "engine: slow"]


def test_a_run_from_begin_to_end(clock) -> None:
    progress = RunProgress()
    clock.now += 50  # the time before the first part does not count
    first = snapshot(phase="starting", parts_total=0, source_bytes_total=0)
    assert progress.snapshot() == first
    assert (first.seconds_left, first.bytes_per_second) == (None, 0.0)
    progress.enter("sharding")
    progress.begin(parts=4, source_bytes=400)
    clock.now += 10
    progress.update(0, source_bytes=50.0, text_bytes=100, tokens=25)
    progress.update(1, source_bytes=30.0, text_bytes=60, tokens=15)
    assert progress.snapshot() == snapshot(
        source_bytes=80.0, text_bytes=160, tokens=40, seconds=10.0
    )
    progress.update(0, source_bytes=10.0, text_bytes=20, tokens=5)  # the part is tried again
    progress.finish(part_times(0, text_bytes=200, tokens=50), source_bytes=100)
    assert progress.snapshot() == snapshot(
        parts_done=1, source_bytes=130.0, text_bytes=260, tokens=65, seconds=10.0
    )
    progress.finish(failed(1), source_bytes=100)
    expected = snapshot(
        parts_done=1,
        parts_failed=1,
        source_bytes=100.0,
        source_bytes_total=300,
        text_bytes=200,
        tokens=50,
        seconds=10.0,
    )
    assert progress.snapshot() == expected  # a failed part leaves nothing to do
    clock.now += 10
    progress.end("sharded")
    clock.now += 100  # the clock stands still
    assert progress.snapshot().seconds == 20.0


@pytest.mark.parametrize(
    ("source_bytes", "left"), [(0.0, None), (100.0, 30.0), (200.0, 10.0), (400.0, 0.0)]
)
def test_rate_and_time_left(source_bytes, left) -> None:
    now = snapshot(source_bytes=source_bytes, text_bytes=500, seconds=10.0)
    assert (now.seconds_left, now.bytes_per_second) == (left, 50.0)


def test_many_threads_count_together() -> None:
    progress = RunProgress()
    progress.begin(parts=8, source_bytes=8000)

    def work(part: int) -> None:
        for step in range(1, 501):
            progress.update(part, source_bytes=step * 2.0, text_bytes=step, tokens=step)
        result = failed(part) if part % 4 == 3 else part_times(part, text_bytes=500, tokens=500)
        progress.finish(result, source_bytes=1000)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    now = progress.snapshot()
    assert (now.parts_done, now.parts_failed) == (6, 2)
    assert (now.source_bytes, now.text_bytes, now.tokens) == (6000.0, 3000, 3000)


def test_the_steps_of_a_part(clock) -> None:
    progress = RunProgress()
    progress.step(0, "/a", "download", "here")
    progress.step(1, "/b", "download", "here")
    clock.now += 5
    progress.step(0, "/a", "tokenize", "here")
    clock.now += 5  # the part waits for a worker
    progress.update(0, source_bytes=10.0, text_bytes=1000, tokens=250)
    began = clock.now
    clock.now += 4
    progress.update(0, source_bytes=30.0, text_bytes=3000, tokens=750)
    progress.step(0, "/a", "tokenize", "here")  # nothing new
    (file, other), ended = progress.files()
    assert (other.source, other.step, other.text_bytes) == ("/b", "download", 0)
    assert (file.part, file.step, file.host, file.tokens) == (0, "tokenize", "here", 750)
    assert (file.since, file.first_bytes) == (began, 1000)
    assert ended == []
    progress.step(0, "/a", "write", "here")
    (now, _), _ = progress.files()
    assert (now.step, now.tokens, now.since) == ("write", 750, clock.now)
    assert file.step == "tokenize"  # what `files` returned does not change


def test_parts_that_ended_or_were_given_up() -> None:
    progress = RunProgress()
    for part in range(3):
        progress.step(part, "/a", "write", "here")
    progress.finish(failed(0), source_bytes=1)
    progress.finish(failed(7), source_bytes=1)  # of another host
    progress.give_up(1)
    working, ended = progress.files()
    assert [file.part for file in working] == [2]
    assert [result.part for result in ended] == [0, 7]
    progress.stop("stopped")
    assert progress.files()[0] == []
