"""The executor `here`: worker processes of this host."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from flows.executors.parts import finished_parts
from tasks.core.config import ShardConfig
from tasks.core.planning.run_plan import RunPlan
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.storage import Storage
from tasks.core.workers.contract import Workers
from tasks.running.ahead import Ahead
from tasks.running.run import Run
from tasks.running.worker_pools import worker_pools
from tasks.tokenize import tokenize_job


class Here:
    """Worker processes, getting ready while the run plans."""

    def __init__(self, pool: Workers, movers: Workers, threads: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._movers = movers
        self._threads = threads
        self._prepared: Future[None] | None = None
        self._ahead = Ahead(threads, pool)

    def prepare(self, plan: RunPlan, storage: Storage) -> bool:
        """Have every process load the tokenizer meanwhile, and begin a part that lies here.

        Only the first stage needs that.
        """
        if plan.stage == "gather":
            return False
        self._prepared = self._threads.submit(
            self._pool.prepare, plan.tokenizer_folder, plan.config.engine
        )
        first = [plan.part(number) for number in plan.todo[: plan.config.workers]]
        here = [part for part in first if not part.remote]
        for part in here:
            self._ahead.begin(tokenize_job(plan, storage, part), self._prepared)
        return bool(here)

    def finished(
        self, plan: RunPlan, storage: Storage, progress: RunProgress
    ) -> Iterator[PartTimes | FailedFile]:
        """Do all parts on this host; see `Executor`."""
        if self._prepared is not None:
            self._prepared.result()
        run = Run(plan, storage, self._pool, progress, self._movers, ahead=self._ahead)
        yield from finished_parts(run)


@contextmanager
def here(
    config: ShardConfig, *, files: int, source_bytes: int, inherited: Sequence[int]
) -> Iterator[Here]:
    """Start the worker processes; they end with the block."""
    with (
        # They end when the processes have ended: one prepares, each other one waits for a part.
        ThreadPoolExecutor(1 + config.workers) as threads,
        worker_pools(config, files, source_bytes, inherited=inherited) as (pool, movers),
    ):
        yield Here(pool, movers, threads)
