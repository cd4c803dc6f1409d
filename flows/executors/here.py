"""The executor `here`: worker processes of this host."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from flows.executors.parts import finished_parts
from streaming_ext.store import Storage
from tasks.core.build.build import Build
from tasks.core.build.run import Run, worker_pools
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.workers.pool import WorkerPool


class Here:
    """Worker processes."""

    def __init__(self, pool: WorkerPool, movers: WorkerPool) -> None:
        self._pool = pool
        self._movers = movers

    def prepare(self, build: Build, output: Storage) -> None:
        """Have every process load what the phase needs."""
        if (job := build.each_worker()) is not None:
            self._pool.run_in_each(job)

    def finished(
        self, build: Build, output: Storage, progress: RunProgress
    ) -> Iterator[PartTimes | FailedFile]:
        """Do all parts on this host; see `Executor`."""
        yield from finished_parts(Run(build, output, self._pool, progress, self._movers))


@contextmanager
def here(build: Build, *, inherited: Sequence[int]) -> Iterator[Here]:
    """Start the worker processes; they end with the block."""
    with worker_pools(build, inherited=inherited) as (pool, movers):
        yield Here(pool, movers)
