"""How far a run is: counted by many threads, looked at by one."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from tasks.core.reporting.report import FailedFile, PartTimes, RunReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """One look at a run; bytes are those of texts unless the name says otherwise.

    Attributes:
        stopped: the run ended early; the phase says how.
        source_bytes, source_bytes_total: of the source files of this run.
        seconds_left: None while it is not known.
    """

    phase: str
    stopped: bool = False
    parts_done: int = 0
    parts_failed: int = 0
    parts_total: int = 0
    text_bytes: int = 0
    tokens: int = 0
    source_bytes: float = 0.0
    source_bytes_total: int = 0
    seconds: float = 0.0

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
    """A part in hand.

    Attributes:
        step: download, tokenize or write; while it waits for a worker, the step that it waits for.
        host: that works on it.
        since: moment of its step's beginning, or of its first text, on the monotonic clock.
        source_bytes: of its source, done.
        first_bytes: text that was done at the moment `since`.
    """

    part: int
    source: str = ""
    step: str = ""
    host: str = ""
    since: float = 0.0
    source_bytes: float = 0.0
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
        self._finished = Snapshot(phase="starting")  # of the parts that have ended
        self._began: float | None = None
        self._ended: float | None = None
        self._working: dict[int, WorkingFile] = {}
        self._results: list[PartTimes | FailedFile] = []
        self.page: str | None = None  # where the report for people lies, once there is one
        self.report: RunReport | None = None  # what came of it, once it has ended
        self.run: str | None = None  # id of the flow run, once there is one
        self.stopped_by: int | None = None  # the signal that ended it early

    def enter(self, phase: str) -> None:
        """Say in a few words what the run is doing now."""
        with self._lock:
            self._finished = replace(self._finished, phase=phase)

    def begin(self, *, parts: int, source_bytes: int) -> None:
        """The first part of a phase is about to be worked on; the clock starts."""
        with self._lock:
            self._finished = Snapshot(
                phase=self._finished.phase, parts_total=parts, source_bytes_total=source_bytes
            )
            self._results.clear()
            self._began = time.monotonic()

    def end(self, done: str = "sharded") -> None:
        """All parts are done; the clock stands still."""
        self.enter(f"{done}; Prefect records the run")
        with self._lock:
            self._ended = time.monotonic()

    @property
    def ended(self) -> bool:
        """Whether all parts are done, or the run was stopped."""
        with self._lock:
            return self._ended is not None

    def stop(self, phase: str) -> None:
        """The run ends early: nothing is in hand any more, and nothing is left to do."""
        with self._lock:
            self._finished = replace(self._finished, phase=phase, stopped=True)
            self._ended = time.monotonic()
            self._working.clear()

    def update(self, part: int, *, source_bytes: float, text_bytes: int, tokens: int) -> None:
        """What is done of a part so far, from its beginning."""
        with self._lock:
            file = self._working.setdefault(part, WorkingFile(part=part))
            if not file.text_bytes:
                file.since, file.first_bytes = time.monotonic(), text_bytes
            file.source_bytes, file.text_bytes, file.tokens = source_bytes, text_bytes, tokens

    def step(self, part: int, source: str, step: str, host: str) -> None:
        """A part is handed to its next step, on a host."""
        with self._lock:
            file = self._working.setdefault(part, WorkingFile(part=part))
            file.source, file.step, file.host = source, step, host
            file.since, file.first_bytes = time.monotonic(), 0

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
            file, done = self._working.pop(part, WorkingFile(part=part)), self._finished
            if failed:
                self._finished = replace(
                    done,
                    parts_failed=done.parts_failed + 1,
                    source_bytes_total=done.source_bytes_total - source_bytes,
                )
            else:
                file.source_bytes = source_bytes
                done = replace(done, parts_done=done.parts_done + 1)
                self._finished = _with_counts(done, [file])

    def give_up(self, part: int) -> None:
        """Whoever had a part in hand is gone; what it did counts no more."""
        with self._lock:
            self._working.pop(part, None)

    def snapshot(self) -> Snapshot:
        """The counters as they are now."""
        with self._lock:
            seconds = 0.0
            if self._began is not None:
                seconds = (self._ended or time.monotonic()) - self._began
            return replace(_with_counts(self._finished, self._working.values()), seconds=seconds)


def _with_counts(done: Snapshot, files: Iterable[WorkingFile]) -> Snapshot:
    names = ("source_bytes", "text_bytes", "tokens")
    counts = {
        name: sum((getattr(file, name) for file in files), getattr(done, name)) for name in names
    }
    return replace(done, **counts)


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
