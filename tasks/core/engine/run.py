"""A run in progress on this host: its build, output, workers and progress."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from streaming_ext.base.errors import StoppedError
from streaming_ext.store import Storage
from streaming_ext.text.parts import Part
from tasks.core.engine.build import Build, PartWork, Step
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import PartTimes
from tasks.core.workers.messages import Job, JobProgress, R
from tasks.core.workers.pool import WorkerPool

LOOK_AHEAD_BYTES = 8 * 2**30  # of source files on scratch that no worker has started
LOOK_AHEAD_FILES = 2  # beyond one per worker: no worker waits, and scratch stays small
_LOOK_SECONDS = 0.5
_BEFORE_THE_LAST_STEP = 0.95  # fraction of a part, for the progress bar


@dataclass(eq=False)
class Run:
    """The objects that the Prefect tasks of a run share, without Prefect storing them.

    Attributes:
        build: the build.
        output: the storage of the output.
        pool: the workers that make parts.
        progress: the counters that people watch.
        movers: the workers that only fetch and upload, so that the others wait for no network.
    """

    build: Build
    output: Storage
    pool: WorkerPool
    progress: RunProgress
    movers: WorkerPool

    def __post_init__(self) -> None:
        self._works: dict[int, PartWork] = {}
        self._room = Room(LOOK_AHEAD_BYTES, lambda: self.pool.stopped)

    def require_going(self) -> None:
        """Check that the run is not stopped and still holds the output.

        Raises:
            StoppedError: the workers were stopped.
            StorageError: another run took the output over.
        """
        if self.pool.stopped:
            raise StoppedError("the run was stopped")
        self.output.require_held()

    def work_on(self, part: Part) -> PartWork:
        """Return the work on a part; the first call begins it."""
        if part.number not in self._works:
            self._works[part.number] = self.build.work_on(part.number, self.output)
        return self._works[part.number]

    def do(self, step: Step, part: Part) -> PartTimes | None:
        """Have a worker do one step of a part; return the times of the part after its last step.

        Raises:
            ShardmillError: the error of the worker.
        """
        if step.fetches:
            self._room.take(part.number, part.size)
        else:
            self.require_going()
        work = self.work_on(part)
        is_last = step == work.steps[-1]
        is_watched = not step.moves and (not is_last or len(work.steps) == 1)
        listen = self._listener(part, 1.0 if is_last else _BEFORE_THE_LAST_STEP)
        pool = self.movers if step.moves else self.pool

        def do_job(job: Job[R]) -> R:
            return pool.run(job, on_progress=listen) if is_watched else pool.run(job)

        try:
            return work.do(step, do_job)
        except BaseException:
            self._room.give_back(part.number)
            raise

    def clean_up(self, part: Part) -> None:
        """Remove the files on scratch of a part that is done or has failed."""
        self._room.give_back(part.number)
        self._works.pop(part.number).clean_up()

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
    """A limit on the bytes of downloaded files that no worker has started; one file always fits.

    Args:
        limit: the limit, in bytes.
        stopped: a function that returns whether the run is stopped, so that no one waits longer.
    """

    def __init__(self, limit: int, stopped: Callable[[], bool]) -> None:
        self._limit = limit
        self._stopped = stopped
        self._held: dict[int, int] = {}
        self._changed = threading.Condition()

    @property
    def used(self) -> int:
        """The bytes in use."""
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
    """Start the workers that make parts and those that only move bytes; they end with the block.

    Args:
        build: the build, whose configuration sets the number of workers.
        inherited: the file descriptors that the workers keep open until they end.
    """
    size = max(build.config.workers, build.at_least)
    with (
        WorkerPool(size, inherited=inherited) as pool,
        WorkerPool(size + LOOK_AHEAD_FILES, inherited=inherited) as movers,
    ):
        pool.start_one()
        yield pool, movers
