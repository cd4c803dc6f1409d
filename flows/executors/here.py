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
from tasks.running.run import Run
from tasks.running.worker_pools import worker_pools


class Here:
    """Worker processes, getting ready while the run plans."""

    def __init__(self, pool: Workers, movers: Workers, thread: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._movers = movers
        self._thread = thread
        self._prepared: Future[None] | None = None

    def prepare(self, plan: RunPlan, storage: Storage) -> None:
        """Have every process load the tokenizer meanwhile; only the first stage needs it."""
        if plan.stage != "gather":
            self._prepared = self._thread.submit(
                self._pool.prepare, plan.tokenizer_folder, plan.config.engine
            )

    def finished(
        self, plan: RunPlan, storage: Storage, progress: RunProgress
    ) -> Iterator[PartTimes | FailedFile]:
        """Do all parts on this host; see `Executor`."""
        if self._prepared is not None:
            self._prepared.result()
        yield from finished_parts(Run(plan, storage, self._pool, progress, self._movers))


@contextmanager
def here(
    config: ShardConfig, *, files: int, source_bytes: int, inherited: Sequence[int]
) -> Iterator[Here]:
    """Start the worker processes; they end with the block."""
    with (
        ThreadPoolExecutor(1) as thread,  # it ends when the processes have ended
        worker_pools(config, files, source_bytes, inherited=inherited) as (pool, movers),
    ):
        yield Here(pool, movers, thread)
