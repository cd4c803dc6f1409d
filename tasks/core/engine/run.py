"""A run in progress on this host: a build, its output, its workers, and what people watch."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from streaming_ext.base.errors import StoppedError
from streaming_ext.store import Storage
from streaming_ext.text.parts import Part
from tasks.core.engine.build import Build, Step
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import PartTimes
from tasks.core.workers.messages import JobProgress
from tasks.core.workers.pool import WorkerPool

LOOK_AHEAD_BYTES = 8 * 2**30  # of source files on scratch that no worker has started
LOOK_AHEAD_FILES = 2  # more than one a worker: enough that no worker waits, and little scratch
_LOOK_SECONDS = 0.5
_BEFORE_THE_LAST_STEP = 0.95  # of a part's time: for the progress bar


@dataclass(eq=False)
class Run:
    """What the Prefect tasks of a run have in common; nothing of it passes through Prefect.

    Attributes:
        build: what is to be made.
        output: where it goes.
        pool: workers, one a core.
        progress: what people watch.
        movers: workers that only fetch and upload, so that the others wait for no network.
    """

    build: Build
    output: Storage
    pool: WorkerPool
    progress: RunProgress
    movers: WorkerPool

    def __post_init__(self) -> None:
        self._results: dict[int, dict[str, Any]] = {}
        self._room = Room(LOOK_AHEAD_BYTES, lambda: self.pool.stopped)

    def require_going(self) -> None:
        """Make sure that the run is not being stopped and still holds the output.

        Raises:
            StoppedError: somebody stopped the workers.
            StorageError: another run took the output over.
        """
        if self.pool.stopped:
            raise StoppedError("the run was stopped")
        self.output.require_held()

    def steps_of(self, part: Part) -> tuple[Step, ...]:
        """The steps that a part needs."""
        steps = self.build.steps(self.output)
        return steps if part.remote else tuple(step for step in steps if not step.fetches)

    def do(self, step: Step, part: Part) -> PartTimes | None:
        """Have a worker do one step of a part; returns what it took once all are done.

        Raises:
            ShardmillError: whatever the worker met.
        """
        if step.fetches:
            self._room.take(part.number, part.size)
        else:
            self.require_going()
        results = self._results.setdefault(part.number, {})
        pool = self.movers if step.moves else self.pool
        job = self.build.job(step.name, part.number, self.output, results)
        last = step == self.build.steps(self.output)[-1]
        watched = not step.moves and not (last and results)
        listen = self._listener(part, 1.0 if last else _BEFORE_THE_LAST_STEP)
        try:
            made = pool.run(job, on_progress=listen) if watched else pool.run(job)
        except BaseException:
            self._room.give_back(part.number)
            raise
        results[step.name] = made
        return self.build.times(part.number, results) if last else None

    def forget(self, part: Part) -> None:
        """Remove from scratch what a part needed: it is done, or has failed."""
        self._room.give_back(part.number)
        self.build.forget(part.number, self._results.pop(part.number, {}))

    def _listener(self, part: Part, weight: float) -> Callable[[JobProgress], None]:
        def listen(progress: JobProgress) -> None:
            self._room.give_back(part.number)
            self.progress.note(progress.engine and f"engine: {progress.engine}")
            self.progress.update(
                part.number,
                source_bytes=part.size * progress.fraction * weight,
                text_bytes=progress.text_bytes,
                tokens=progress.tokens,
            )

        return listen


class Room:
    """A limit to the bytes of downloaded files that no worker has started; one file always fits.

    Args:
        limit: in bytes.
        stopped: whether the run is being stopped, so that nobody waits any longer.
    """

    def __init__(self, limit: int, stopped: Callable[[], bool]) -> None:
        self._limit = limit
        self._stopped = stopped
        self._held: dict[int, int] = {}
        self._changed = threading.Condition()

    @property
    def used(self) -> int:
        """Bytes in use."""
        with self._changed:
            return sum(self._held.values())

    def take(self, part: int, size: int) -> None:
        """Wait until a part's file may be fetched.

        Raises:
            StoppedError: the run was stopped meanwhile.
        """
        with self._changed:
            while self._held and self.used + size > self._limit:
                if self._stopped():
                    raise StoppedError("the run was stopped")
                self._changed.wait(_LOOK_SECONDS)
            self._held[part] = size

    def give_back(self, part: int) -> None:
        """Release the bytes of a part that a worker has started, or that has failed."""
        with self._changed:
            self._held.pop(part, None)
            self._changed.notify_all()


@contextmanager
def worker_pools(
    build: Build, *, inherited: Sequence[int] = ()
) -> Iterator[tuple[WorkerPool, WorkerPool]]:
    """The processes that make parts, and those that only move bytes; they end with the block.

    Args:
        build: says how many.
        inherited: file descriptors that the processes keep open until they end.
    """
    size = max(build.config.workers, build.at_least)
    with (
        WorkerPool(size, inherited=inherited) as pool,
        WorkerPool(size + LOOK_AHEAD_FILES, inherited=inherited) as movers,
    ):
        yield pool, movers
