"""The executor `here`: worker processes of this host."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from flows.executors.parts import finished_parts
from tasks.core.config import ShardConfig
from tasks.core.planning.run_plan import RunPlan
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.storage import Storage
from tasks.core.workers.pool import WorkerPool
from tasks.core.workers.tokenize_part import PrepareJob
from tasks.running.run import Run
from tasks.running.worker_pools import worker_pools


class Here:
    """Worker processes."""

    def __init__(self, pool: WorkerPool, movers: WorkerPool) -> None:
        self._pool = pool
        self._movers = movers

    def prepare(self, plan: RunPlan, storage: Storage) -> None:
        """Have every process load the tokenizer, which the second stage does without."""
        if plan.stage != "gather":
            self._pool.run_in_each(PrepareJob.of(plan.tokenizer_folder, plan.config.engine))

    def finished(
        self, plan: RunPlan, storage: Storage, progress: RunProgress
    ) -> Iterator[PartTimes | FailedFile]:
        """Do all parts on this host; see `Executor`."""
        yield from finished_parts(Run(plan, storage, self._pool, progress, self._movers))


@contextmanager
def here(config: ShardConfig, *, files: int, inherited: Sequence[int]) -> Iterator[Here]:
    """Start the worker processes; they end with the block."""
    with worker_pools(config, files, inherited=inherited) as (pool, movers):
        yield Here(pool, movers)
