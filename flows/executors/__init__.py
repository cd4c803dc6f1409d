"""Where the parts of a run are worked on: on this host, or on others."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from streaming_ext.base.errors import UsageError
from streaming_ext.store import Storage
from tasks.core.build.build import Build
from tasks.core.options import ExecutionOnHosts
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes

# Does all parts of a build that are left; yields the result of each, in any order. An error that
# every other part would meet too is raised.
Executor = Callable[[Any, Storage, RunProgress], Iterator[PartTimes | FailedFile]]


def open_executor(build: Build, *, inherited: Sequence[int]) -> AbstractContextManager[Executor]:
    """The executor of a build; when the block ends, all work that it started has ended.

    Args:
        build: whose configuration names it.
        inherited: file descriptors that worker processes on this host keep open.
    """
    if build.executor == "here":
        from flows.executors.here import here

        return here(build, inherited=inherited)
    scheme, _, name = build.executor.partition("://")
    if scheme == "prefect":
        from flows.executors.work_pool import on_work_pool

        assert isinstance(build.config, ExecutionOnHosts)  # noqa: S101  (only it names executors)
        return on_work_pool(name, partitions=build.config.partitions)
    try:
        from flows.executors.dask import on_dask
    except ImportError as error:
        raise UsageError(f"--executor {build.executor} needs the extra `dask`: {error}.") from error
    return on_dask(f"{'tls' if scheme == 'dask+tls' else 'tcp'}://{name}")
