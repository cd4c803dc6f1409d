"""The plan and the counters of a run, for the command that watches it in the same process."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

from streaming_ext.store import Storage, open_storage
from tasks.core.engine import lifecycle
from tasks.core.engine.build import Build, OnStatus
from tasks.core.engine.run import worker_pools
from tasks.core.options import ExecutionOnHosts
from tasks.core.reporting.progress import RunProgress
from tasks.core.shard.run_plan import RunPlan
from tasks.core.workers.pool import WorkerPool


class OutputConfig(Protocol):
    """The configuration of a run that makes an output."""

    @property
    def output(self) -> str:
        """Path or URL of the output."""
        ...

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """Return the configuration with other values of some fields."""
        ...


Config = TypeVar("Config", bound=OutputConfig)
# Plans the build of a configuration on its output; it writes nothing.
Plan = Callable[[Config, Storage, OnStatus], Build]


@dataclass
class WatchedRun:
    """A run that a command watches.

    Attributes:
        progress: the counters of the run.
        before: the state of the output when the run was planned; None if it was not planned.
        build: the plan.
        held: the output, while `holding` holds it.
        pools: the worker processes of this host, while `holding` holds the output; None if other
            hosts make the parts.
        is_prepared: True once `begin` has prepared the work.
    """

    progress: RunProgress = field(default_factory=RunProgress)
    before: list[object] | None = None
    build: Build | None = None
    held: Storage | None = None
    pools: tuple[WorkerPool, WorkerPool] | None = None
    is_prepared: bool = False

    def planned(self, plan: Plan[Config], config: Config, output: Storage) -> Build:
        """Return the plan of the run, made anew if another run has written to the output since."""
        now = lifecycle.state_of(output)
        if self.build is None or now != self.before:
            self.before, self.build = now, plan(config, output, self.progress.enter)
        return self.build

    @contextmanager
    def holding(self, plan: Plan[Config], config: Config) -> Iterator[tuple[Build, Storage]]:
        """Hold the output against other runs, start workers, and yield the plan and the output.

        A published output is not held. A block within another block of the same run yields the same
        values: a command holds the output while its server starts, and then its flow uses it.
        """
        if self.build is not None and self.held is not None:
            yield self.build, self.held
            return
        output, enter = open_storage(config.output), self.progress.enter
        build = self.build or self.planned(plan, config, output)
        if build.published and not lifecycle.is_started(build, output):
            output.tidy(build.scratch)
            yield build, output
            return
        output.create()
        with ExitStack() as stack:
            lock = stack.enter_context(output.exclusive(enter))
            enter("looking at the output")
            build = self.planned(plan, config, output)
            if build.published:
                lifecycle.end_killed_run(build, output, enter)
            elif not isinstance(build.config, ExecutionOnHosts) or build.config.executor == "here":
                inherited = [] if lock is None else [lock]
                self.pools = stack.enter_context(worker_pools(build, inherited=inherited))
            self.held = output
            try:
                yield build, output
            finally:
                self.held = self.pools = None
            output.close()  # not earlier, because the executor ends its guests through it

    def begin(self) -> Build:
        """Prepare the remaining work once, and return the plan; the caller holds the output."""
        assert self.build is not None  # noqa: S101  (`holding` plans it)
        assert self.held is not None  # noqa: S101
        if not self.is_prepared:
            if isinstance(self.build, RunPlan):
                self.progress.note(self.build.note)
            self.build = lifecycle.begin(self.build, self.held, self.progress.enter)
            self.is_prepared = True
            if self.pools is not None and (job := self.build.first_job) is not None:
                self.pools[0].run_ahead(job)
        return self.build


_WATCHED: ContextVar[WatchedRun | None] = ContextVar("watched_run", default=None)


@contextmanager
def watch() -> Iterator[WatchedRun]:
    """Watch the run that starts in the block."""
    run = WatchedRun()
    token = _WATCHED.set(run)
    try:
        yield run
    finally:
        _WATCHED.reset(token)


def watched() -> WatchedRun:
    """Return the run that `watch` follows, or a new one."""
    return _WATCHED.get() or WatchedRun()
