"""The worker processes of one host."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from tasks.core.config import ShardConfig
from tasks.core.workers.pool import Worker, WorkerPool

LOOK_AHEAD_FILES = 2  # beside one a worker: enough that no worker waits, and little scratch
_ahead: ContextVar[list[Worker] | None] = ContextVar("worker_ahead", default=None)


@contextmanager
def worker_ahead() -> Iterator[None]:
    """Start a process that tokenizes, for the first pool of the block.

    It takes a second to get ready, in which the command loads Prefect and plans.
    """
    workers = [Worker()]
    token = _ahead.set(workers)
    try:
        yield
    finally:
        _ahead.reset(token)
        for worker in workers:  # that no pool took
            worker.kill()
            worker.reap()


@contextmanager
def worker_pools(
    config: ShardConfig, files: int, *, inherited: Sequence[int] = ()
) -> Iterator[tuple[WorkerPool, WorkerPool]]:
    """Start the processes that tokenize, one a core, and have those ready that move bytes.

    Args:
        config: says how many.
        files: that there are at most to work on.
        inherited: file descriptors that the processes keep open until they end.
    """
    size = min(config.workers, files)
    ahead = _ahead.get()
    first = ahead.pop() if ahead else None
    with (
        WorkerPool(size, inherited=inherited, first=first, light=config.light) as pool,
        WorkerPool(size + LOOK_AHEAD_FILES, inherited=inherited, light=True) as movers,
    ):
        yield pool, movers
