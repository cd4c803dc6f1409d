"""A run in the process of the command that watches it: its counters, and its plan."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

from streaming_ext.store import Storage
from tasks.core.engine.build import Build, OnStatus
from tasks.core.engine.lifecycle import state_of
from tasks.core.reporting.progress import RunProgress


class OutputConfig(Protocol):
    """The configuration of a run that makes an output."""

    @property
    def output(self) -> str:
        """Path or URL of the output."""
        ...

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The same configuration with other values of some fields."""
        ...


Config = TypeVar("Config", bound=OutputConfig)
# Plans the build of a configuration on its output, and writes nothing.
Plan = Callable[[Config, Storage, OnStatus], Build]


@dataclass
class WatchedRun:
    """A run that somebody watches.

    Attributes:
        progress: the counters of the run.
        before: the state of the output when the run was planned; None before that.
        build: the plan.
    """

    progress: RunProgress = field(default_factory=RunProgress)
    before: list[object] | None = None
    build: Build | None = None

    def planned(self, plan: Plan[Config], config: Config, output: Storage) -> Build:
        """The plan of the run, made again if another run has written to the output since."""
        now = state_of(output)
        if self.build is None or now != self.before:
            self.before, self.build = now, plan(config, output, self.progress.enter)
        return self.build


_WATCHED: ContextVar[WatchedRun | None] = ContextVar("watched_run", default=None)


@contextmanager
def watch() -> Iterator[WatchedRun]:
    """Watch the run that starts in this block."""
    run = WatchedRun()
    token = _WATCHED.set(run)
    try:
        yield run
    finally:
        _WATCHED.reset(token)


def watched() -> WatchedRun:
    """The run that `watch` follows, or a new one."""
    return _WATCHED.get() or WatchedRun()
