"""The worker processes of one host."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tasks.core.config import ShardConfig
from tasks.core.workers.contract import Workers
from tasks.core.workers.own_threads import LITTLE_BYTES, OwnThreads
from tasks.core.workers.pool import WorkerPool

LOOK_AHEAD_FILES = 2  # beside one a worker: enough that no worker waits, and little scratch


@contextmanager
def worker_pools(
    config: ShardConfig,
    files: int,
    source_bytes: int | None = None,
    *,
    inherited: Sequence[int] = (),
) -> Iterator[tuple[Workers, Workers]]:
    """Start the processes that tokenize, one a core, and have those ready that move bytes.

    Where few bytes are taken as they are, threads of this process do both.

    Args:
        config: says how many.
        files: that there are at most to work on.
        source_bytes: that there are at most to read; None where that is not known.
        inherited: file descriptors that the processes keep open until they end.
    """
    size = min(config.workers, files)
    if config.light and source_bytes is not None and source_bytes <= LITTLE_BYTES:
        with OwnThreads(size) as threads:
            yield threads, threads
        return
    with (
        WorkerPool(size, inherited=inherited, light=config.light) as pool,
        WorkerPool(size + LOOK_AHEAD_FILES, inherited=inherited, light=True) as movers,
    ):
        yield pool, movers
