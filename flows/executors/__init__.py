"""Where the source files of a run are worked on: on this host, or on others."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from streaming_ext.errors import UsageError
from tasks.core.config import ShardConfig
from tasks.core.planning.run_plan import RunPlan
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.storage import Storage


class Executor(Protocol):
    """Hosts that are ready for work."""

    def prepare(self, plan: RunPlan, storage: Storage) -> None:
        """Have the hosts ready for a stage of the plan."""
        ...

    def finished(
        self, plan: RunPlan, storage: Storage, progress: RunProgress
    ) -> Iterator[PartTimes | FailedFile]:
        """Do all parts that are to be done; yields what became of each, in any order.

        Raises:
            ShardmillError: a fault that every other part would meet too.
        """
        ...


def open_executor(
    config: ShardConfig, *, files: int, inherited: Sequence[int]
) -> AbstractContextManager[Executor]:
    """The executor that is configured; when the block ends, all work that it began has ended.

    Args:
        config: names it.
        files: that there are at most to work on.
        inherited: file descriptors that worker processes on this host keep open.
    """
    if config.executor == "here":
        from flows.executors.here import here

        return here(config, files=files, inherited=inherited)
    scheme, _, name = config.executor.partition("://")
    if scheme == "prefect":
        from flows.executors.work_pool import on_work_pool

        return on_work_pool(name, partitions=config.partitions)
    try:
        from flows.executors.dask import on_dask
    except ImportError as error:
        raise UsageError(
            f"--executor {config.executor} needs the extra `dask`: {error}."
        ) from error
    return on_dask(f"{'tls' if scheme == 'dask+tls' else 'tcp'}://{name}")
