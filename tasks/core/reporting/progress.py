"""The progress of a run: many threads count, one reads."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tasks.core.reporting.report import FailedFile, PartTimes, RunReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The counters of a run at one moment.

    Attributes:
        phase: the current work of the run, in a few words.
        stopped: True if the run ended early; `phase` says how.
        text_bytes, tokens: the text and tokens of documents so far.
        source_bytes, source_bytes_total: the bytes of source files that are done, and of all.
        seconds: the time since the phase began.
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
        """The text that is tokenized, in bytes per second."""
        return self.text_bytes / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The time for the rest of the sources at the rate so far; None while it is unknown."""
        if not self.source_bytes:
            return None
        return (self.source_bytes_total / self.source_bytes - 1) * self.seconds


@dataclass(kw_only=True, slots=True)
class WorkingFile:
    """A part in progress.

    Attributes:
        step: the name of the step, which may still wait for a worker.
        host: the host that works on the part.
        since: the time when the step began, or its first text was done, on the monotonic clock
            of the process that shows it.
        source_bytes: the bytes of the part's source that are done.
        first_bytes: the bytes of text that were done at `since`.
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


class RunProgress:
    """The counters of one run.

    Attributes:
        listeners: the functions to call with each line that `note` gets.
        page: the path of the report for people, once it is written.
        report: the report of the run, once it has ended.
        run: the id of the flow run, once there is one.
        tasks: the number of its task runs so far.
        stopped_by: the exception to raise for the signal that ended the run early.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._finished = Snapshot(phase="starting")  # counts finished and failed parts
        self._began: float | None = None
        self._ended: float | None = None
        self._working: dict[int, WorkingFile] = {}
        self._results: list[PartTimes | FailedFile] = []
        self._notes: set[str] = set()
        self.listeners: list[Callable[[str], None]] = []
        self.page: str | None = None
        self.report: RunReport | None = None
        self.run: str | None = None
        self.tasks = 0
        self.stopped_by: BaseException | None = None

    def enter(self, phase: str) -> None:
        """Set the current work of the run, in a few words."""
        with self._lock:
            self._finished = replace(self._finished, phase=phase)

    def note(self, line: str) -> None:
        """Pass a line to the listeners, once."""
        with self._lock:
            is_new = line not in self._notes
            self._notes.add(line)
        for listener in self.listeners if is_new and line else ():
            listener(line)

    def begin(self, *, parts: int, source_bytes: int) -> None:
        """Start the clock of a phase."""
        with self._lock:
            self._finished = Snapshot(
                phase=self._finished.phase, parts_total=parts, source_bytes_total=source_bytes
            )
            self._results.clear()
            self._began = time.monotonic()

    def end(self, done: str) -> None:
        """Stop the clock: all parts are done."""
        self.enter(f"{done}; Prefect records the run")
        self._ended = time.monotonic()

    def stop(self, phase: str) -> None:
        """End the run early: no part is in progress any more."""
        with self._lock:
            self._finished = replace(self._finished, phase=phase, stopped=True)
            self._ended = time.monotonic()
            self._working.clear()

    def step(self, part: int, source: str, step: str, host: str) -> None:
        """Record that a part enters a step on a host; do nothing if it is in that step already."""
        with self._lock:
            file = self._working.setdefault(part, WorkingFile(part=part))
            if (file.step, file.host) != (step, host):
                file.source, file.step, file.host = source, step, host
                file.since, file.first_bytes = time.monotonic(), 0

    def update(self, part: int, *, source_bytes: float, text_bytes: int, tokens: int) -> None:
        """Set how much of a part is done, counted from its beginning."""
        with self._lock:
            file = self._working.setdefault(part, WorkingFile(part=part))
            if not file.text_bytes:
                file.since, file.first_bytes = time.monotonic(), text_bytes
            file.source_bytes, file.text_bytes, file.tokens = source_bytes, text_bytes, tokens

    def finish(self, result: PartTimes | FailedFile, *, source_bytes: int) -> None:
        """Count a part that has ended; the bytes of a failed one do not count."""
        if isinstance(result, PartTimes):
            self.note(result.engine and f"engine: {result.engine}")
        with self._lock:
            self._working.pop(result.part, None)
            self._results.append(result)
            done = self._finished
            if isinstance(result, FailedFile):
                total = done.source_bytes_total - source_bytes
                done = replace(done, parts_failed=done.parts_failed + 1, source_bytes_total=total)
            else:
                done = replace(
                    done,
                    parts_done=done.parts_done + 1,
                    source_bytes=done.source_bytes + source_bytes,
                    text_bytes=done.text_bytes + result.text_bytes,
                    tokens=done.tokens + result.tokens,
                )
            self._finished = done

    def give_up(self, part: int) -> None:
        """Forget the progress of a part whose host is gone."""
        with self._lock:
            self._working.pop(part, None)

    def files(self) -> tuple[list[WorkingFile], list[PartTimes | FailedFile]]:
        """Return the parts in progress and the ended ones, each in the order in which they came."""
        with self._lock:
            return [replace(file) for file in self._working.values()], list(self._results)

    def snapshot(self) -> Snapshot:
        """Return the counters as they are now."""
        with self._lock:
            seconds = 0.0
            if self._began is not None:
                seconds = (self._ended or time.monotonic()) - self._began
            done, files = self._finished, self._working.values()
            return replace(
                done,
                source_bytes=done.source_bytes + sum(file.source_bytes for file in files),
                text_bytes=done.text_bytes + sum(file.text_bytes for file in files),
                tokens=done.tokens + sum(file.tokens for file in files),
                seconds=seconds,
            )
