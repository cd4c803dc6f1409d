"""The worker processes of one host."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tasks.core.config import ShardConfig
from tasks.core.workers.pool import WorkerPool

LOOK_AHEAD_FILES = 2  # beside one a worker: enough that no worker waits, and little scratch


@contextmanager
def worker_pools(
    config: ShardConfig,
    files: int,
    *,
    inherited: Sequence[int] = (),
) -> Iterator[tuple[WorkerPool, WorkerPool]]:
    """Start the processes that tokenize, one a core, and have those ready that move bytes.

    Args:
        config: says how many.
        files: that there are at most to work on.
        inherited: file descriptors that the processes keep open until they end.
    """
    size = min(config.workers, files)
    with (
        WorkerPool(size, inherited=inherited, light=config.light) as pool,
        WorkerPool(size + LOOK_AHEAD_FILES, inherited=inherited, light=True) as movers,
    ):
        yield pool, movers
