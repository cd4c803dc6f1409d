"""How far a run is: counted by many threads, looked at by one."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from tasks.core.reporting.report import FailedFile, PartTimes, RunReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """One look at a run; bytes are those of texts unless the name says otherwise.

    Attributes:
        stopped: the run has ended before its time; the phase tells how.
        source_bytes, source_bytes_total: of the source files of this run.
        seconds_left: None while it cannot be told.
    """

    phase: str
    stopped: bool = False
    parts_done: int
    parts_failed: int
    parts_total: int
    text_bytes: int
    tokens: int
    source_bytes: float
    source_bytes_total: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Text tokenized, in bytes a second."""
        return self.text_bytes / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """What is left of the sources at the rate so far."""
        if not self.source_bytes:
            return None
        return (self.source_bytes_total / self.source_bytes - 1) * self.seconds


@dataclass(kw_only=True, slots=True)
class WorkingFile:
    """A part that is begun and has not ended.

    Attributes:
        step: download, tokenize or write; where it waits for a worker, the step that it waits for.
        host: that works on it.
        since: moment of its step's beginning, or of its first text, on the monotonic clock.
        first_bytes: text that was done at that moment.
    """

    part: int
    source: str
    step: str
    host: str
    since: float
    text_bytes: int = 0
    tokens: int = 0
    first_bytes: int = 0

    def bytes_per_second(self, now: float) -> float:
        """Text tokenized, in bytes a second, since the first of it."""
        seconds = now - self.since
        return (self.text_bytes - self.first_bytes) / seconds if seconds > 0 else 0.0


class RunProgress:
    """The counters of one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase = "starting"
        self._stopped = False
        self._began: float | None = None
        self._ended: float | None = None
        self._parts_total = self._parts_done = self._parts_failed = 0
        self._source_bytes_total = 0
        self._parts: dict[int, tuple[float, int, int]] = {}  # source bytes, text bytes, tokens
        self._finished = (0.0, 0, 0)
        self._working: dict[int, WorkingFile] = {}
        self._results: list[PartTimes | FailedFile] = []
        self.page: str | None = None  # where the report for people lies, once there is one
        self.report: RunReport | None = None  # what came of it, once it has ended
        self.run: str | None = None  # id of the flow run, once there is one
        self.stopped_by: int | None = None  # the signal that ended it before its time

    def enter(self, phase: str) -> None:
        """Say in a few words what the run is doing now."""
        with self._lock:
            self._phase = phase

    def begin(self, *, parts: int, source_bytes: int) -> None:
        """The first part of a stage is about to be worked on; the clock starts."""
        with self._lock:
            self._parts_total, self._source_bytes_total = parts, source_bytes
            self._parts_done = self._parts_failed = 0  # of the stage before, if there was one
            self._finished = (0.0, 0, 0)
            self._results.clear()
            self._began = time.monotonic()

    def end(self, done: str = "sharded") -> None:
        """All parts are done; the clock stands still."""
        with self._lock:
            self._phase = f"{done}; Prefect records the run"
            self._ended = time.monotonic()

    @property
    def ended(self) -> bool:
        """Whether all parts are done, or the run was stopped."""
        with self._lock:
            return self._ended is not None

    def stop(self, phase: str) -> None:
        """The run ends before its time: nothing is in hand any more, and nothing is left to do."""
        with self._lock:
            self._phase, self._stopped = phase, True
            self._ended = time.monotonic()
            self._parts.clear()
            self._working.clear()

    def update(self, part: int, *, source_bytes: float, text_bytes: int, tokens: int) -> None:
        """What is done of a part so far, from its beginning."""
        with self._lock:
            self._parts[part] = (source_bytes, text_bytes, tokens)
            file = self._working.get(part)
            if file is not None:
                if not file.text_bytes:
                    file.since, file.first_bytes = time.monotonic(), text_bytes
                file.text_bytes, file.tokens = text_bytes, tokens

    def step(self, part: int, source: str, step: str, host: str) -> None:
        """A part is handed to its next step, on a host."""
        with self._lock:
            before = self._working.get(part)
            self._working[part] = WorkingFile(
                part=part,
                source=source,
                step=step,
                host=host,
                since=time.monotonic(),
                text_bytes=before.text_bytes if before else 0,
                tokens=before.tokens if before else 0,
            )

    def note(self, result: PartTimes | FailedFile) -> None:
        """What came of a part, on whichever host."""
        with self._lock:
            self._working.pop(result.part, None)
            self._results.append(result)

    def files(self) -> tuple[list[WorkingFile], list[PartTimes | FailedFile]]:
        """The parts in hand and those that have ended, both in the order in which they came."""
        with self._lock:
            return [replace(file) for file in self._working.values()], list(self._results)

    def finish(self, part: int, *, source_bytes: int, failed: bool) -> None:
        """A part is done, all of its source; what a failed one did counts no more."""
        with self._lock:
            _, text_bytes, tokens = self._parts.pop(part, (0.0, 0, 0))
            if failed:
                self._parts_failed += 1
                self._source_bytes_total -= source_bytes
            else:
                self._parts_done += 1
                self._finished = _add(self._finished, (source_bytes, text_bytes, tokens))

    def give_up(self, part: int) -> None:
        """Whoever had a part in hand is gone; what it did counts no more."""
        with self._lock:
            self._parts.pop(part, None)
            self._working.pop(part, None)

    def in_hand(self) -> list[tuple[WorkingFile, float]]:
        """The parts in hand, each with the bytes of its source that are done."""
        with self._lock:
            return [
                (replace(file), self._parts.get(part, (0.0, 0, 0))[0])
                for part, file in self._working.items()
            ]

    def snapshot(self) -> Snapshot:
        """The counters as they are now."""
        with self._lock:
            total = self._finished
            for counted in self._parts.values():
                total = _add(total, counted)
            return Snapshot(
                phase=self._phase,
                stopped=self._stopped,
                parts_done=self._parts_done,
                parts_failed=self._parts_failed,
                parts_total=self._parts_total,
                text_bytes=total[1],
                tokens=total[2],
                source_bytes=total[0],
                source_bytes_total=self._source_bytes_total,
                seconds=self._seconds(),
            )

    def _seconds(self) -> float:
        if self._began is None:
            return 0.0
        return (self._ended or time.monotonic()) - self._began


def _add(a: tuple[float, int, int], b: tuple[float, int, int]) -> tuple[float, int, int]:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


_WATCHED: ContextVar[RunProgress | None] = ContextVar("watched_run", default=None)


@contextmanager
def watch() -> Iterator[RunProgress]:
    """Follow the run that is started in this block; yields its counters."""
    progress = RunProgress()
    token = _WATCHED.set(progress)
    try:
        yield progress
    finally:
        _WATCHED.reset(token)


def watched() -> RunProgress:
    """The counters that somebody follows, or fresh ones."""
    return _WATCHED.get() or RunProgress()
