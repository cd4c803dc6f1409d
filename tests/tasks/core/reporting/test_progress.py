"""Counters of a run, on a clock that the test turns."""

import contextvars
import threading
from types import SimpleNamespace

import pytest

from tasks.core.reporting import progress as progress_module
from tasks.core.reporting.progress import RunProgress, Snapshot, watch, watched
from tasks.core.reporting.report import FailedFile


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


def snapshot(**changes: object) -> Snapshot:
    values: dict[str, object] = {
        "phase": "sharding", "parts_done": 0, "parts_failed": 0, "parts_total": 4,
        "text_bytes": 0, "tokens": 0, "source_bytes": 0.0, "source_bytes_total": 400,
        "seconds": 0.0,
    }  # fmt: skip
    return Snapshot(**(values | changes))  # type: ignore[arg-type]


def test_before_it_begins(clock: Clock) -> None:
    progress = RunProgress()
    clock.now += 50
    now = progress.snapshot()
    assert now == snapshot(phase="starting", parts_total=0, source_bytes_total=0)
    assert now.seconds_left is None
    assert now.bytes_per_second == 0.0


def test_a_run_from_begin_to_end(clock: Clock) -> None:
    progress = RunProgress()
    progress.enter("sharding")
    clock.now += 5  # looking at the sources does not count
    progress.begin(parts=4, source_bytes=400)
    clock.now += 10
    progress.update(0, source_bytes=50.0, text_bytes=100, tokens=25)
    progress.update(1, source_bytes=30.0, text_bytes=60, tokens=15)
    assert progress.snapshot() == snapshot(
        source_bytes=80.0, text_bytes=160, tokens=40, seconds=10.0
    )
    progress.update(0, source_bytes=100.0, text_bytes=200, tokens=50)  # from its beginning
    progress.finish(0, source_bytes=100, failed=False)
    assert progress.snapshot() == snapshot(
        parts_done=1, source_bytes=130.0, text_bytes=260, tokens=65, seconds=10.0
    )
    progress.finish(1, source_bytes=100, failed=True)
    assert progress.snapshot() == snapshot(
        parts_done=1,
        parts_failed=1,
        source_bytes=100.0,
        source_bytes_total=300,  # nobody waits for the failed one any more
        text_bytes=200,
        tokens=50,
        seconds=10.0,
    )
    clock.now += 10
    progress.end()
    clock.now += 100  # it stands still
    assert progress.snapshot().seconds == 20.0


def test_a_part_that_is_tried_again_counts_once(clock: Clock) -> None:
    progress = RunProgress()
    progress.begin(parts=1, source_bytes=100)
    progress.update(0, source_bytes=90.0, text_bytes=90, tokens=9)
    progress.update(0, source_bytes=10.0, text_bytes=10, tokens=1)
    assert progress.snapshot().tokens == 1
    progress.finish(0, source_bytes=100, failed=False)
    assert progress.snapshot().tokens == 1


def test_a_part_that_fails_before_any_update(clock: Clock) -> None:
    progress = RunProgress()
    progress.begin(parts=1, source_bytes=100)
    progress.finish(0, source_bytes=100, failed=True)
    assert progress.snapshot() == snapshot(
        phase="starting", parts_failed=1, parts_total=1, source_bytes_total=0
    )


def test_nothing_is_left_when_all_are_done(clock: Clock) -> None:
    progress = RunProgress()
    progress.begin(parts=2, source_bytes=200)
    clock.now += 10
    progress.update(0, source_bytes=75.0, text_bytes=9, tokens=9)  # tokenized, not yet written
    progress.finish(0, source_bytes=100, failed=False)
    progress.finish(1, source_bytes=100, failed=True)
    assert progress.snapshot().seconds_left == 0


@pytest.mark.parametrize(
    ("source_bytes", "seconds", "left"),
    [(0.0, 10.0, None), (100.0, 10.0, 30.0), (200.0, 10.0, 10.0), (400.0, 10.0, 0.0)],
)
def test_time_left(source_bytes: float, seconds: float, left: float | None) -> None:
    assert snapshot(source_bytes=source_bytes, seconds=seconds).seconds_left == left


def test_rate() -> None:
    assert snapshot(text_bytes=500, seconds=2.0).bytes_per_second == 250.0


def test_many_threads_count_together() -> None:
    progress = RunProgress()
    progress.begin(parts=8, source_bytes=8000)

    def work(part: int) -> None:
        for step in range(1, 501):
            progress.update(part, source_bytes=step * 2.0, text_bytes=step, tokens=step)
        progress.finish(part, source_bytes=1000, failed=part % 4 == 3)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = progress.snapshot()
    assert (now.parts_done, now.parts_failed) == (6, 2)
    assert (now.source_bytes, now.text_bytes, now.tokens) == (6000.0, 3000, 3000)


class TestFiles:
    def test_from_step_to_step(self, clock: Clock) -> None:
        progress = RunProgress()
        progress.begin(parts=2, source_bytes=200)
        progress.step(0, "/a", "download", "here")
        progress.step(1, "/b", "download", "here")
        clock.now += 5
        progress.step(0, "/a", "tokenize", "here")
        clock.now += 5  # it waits for a worker
        progress.update(0, source_bytes=10.0, text_bytes=1000, tokens=250)
        clock.now += 4
        progress.update(0, source_bytes=30.0, text_bytes=3000, tokens=750)
        (other, file), ended = progress.files()[0][::-1], progress.files()[1]
        assert (other.source, other.step, other.text_bytes) == ("/b", "download", 0)
        assert (file.part, file.step, file.host, file.tokens) == (0, "tokenize", "here", 750)
        assert file.bytes_per_second(clock.now) == 500.0  # since its first text
        assert ended == []

    def test_the_write_keeps_the_counts_and_begins_anew(self, clock: Clock) -> None:
        progress = RunProgress()
        progress.step(0, "/a", "tokenize", "here")
        progress.update(0, source_bytes=10.0, text_bytes=1000, tokens=250)
        clock.now += 5
        progress.step(0, "/a", "write", "here")
        ((file,), _) = progress.files()
        assert (file.step, file.tokens, file.since) == ("write", 250, clock.now)

    def test_what_came_of_them(self) -> None:
        progress = RunProgress()
        progress.step(0, "/a", "write", "here")
        failed = FailedFile(part=0, source="/a", step="write", reason="full")
        progress.note(failed)
        progress.note(failed.model_copy(update={"part": 7}))  # of another host
        working, ended = progress.files()
        assert working == []
        assert [result.part for result in ended] == [0, 7]

    def test_what_is_looked_at_does_not_change(self) -> None:
        progress = RunProgress()
        progress.step(0, "/a", "tokenize", "here")
        ((file,), ended) = progress.files()
        progress.update(0, source_bytes=1.0, text_bytes=1, tokens=1)
        progress.note(FailedFile(part=0, source="/a", step="write", reason="full"))
        assert (file.tokens, ended) == (0, [])


class TestWatch:
    def test_the_run_in_the_block_is_followed(self) -> None:
        with watch() as progress:
            assert watched() is progress
        assert watched() is not progress

    def test_nobody_watches(self) -> None:
        assert watched() is not watched()

    def test_blocks_nest_and_end_on_errors(self) -> None:
        with watch() as outer:
            with pytest.raises(RuntimeError), watch() as inner:
                assert watched() is inner
                raise RuntimeError
            assert watched() is outer

    def test_a_thread_with_a_copied_context_is_followed(self) -> None:
        found: list[RunProgress] = []
        with watch() as progress:
            context = contextvars.copy_context()
            thread = threading.Thread(target=lambda: found.append(context.run(watched)))
            thread.start()
            thread.join()
        assert found == [progress]
