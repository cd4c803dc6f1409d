"""Builds made in this process, without Prefect and without worker processes."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Self, TypeVar

from streaming_ext.store import Storage, open_storage
from tasks.core.config import ShardConfig
from tasks.core.engine import lifecycle
from tasks.core.engine.build import Build
from tasks.core.shard.plan import plan_shard
from tasks.core.shard.shard_build import ShardBuild
from tasks.core.workers.messages import Job, R, WorkerCache

B = TypeVar("B", bound=Build)


class OneWorker(WorkerCache):
    """A pool that does jobs in this process: a real worker takes a second to start."""

    def __init__(self, size: int) -> None:
        super().__init__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, job: Job[Any]) -> Any:
        return job.do(self, lambda progress: None).model_copy(update={"seconds": 1.0})


def quiet(words: str) -> None:
    """Show nothing."""


def begun(build: B, output: Storage) -> B:
    """Mark the output of a build as begun, unless it is published, and return the build."""
    output.create()
    return build if build.published else lifecycle.begin(build, output, quiet)


def make_plan(config: ShardConfig, output: Storage) -> ShardBuild:
    """Plan a dataset and start it on its output."""
    return begun(plan_shard(config, output), output)


def do_parts(build: Build, output: Storage, parts: Iterable[int] | None = None) -> None:
    """Do some parts as workers do, by default all that are left."""
    cache = WorkerCache()
    cache.storage = lambda url: output if url == str(output) else open_storage(url)

    def do_job(job: Job[R]) -> R:
        return job.do(cache, lambda progress: None)

    for number in build.todo if parts is None else parts:
        work = build.work_on(number, output)
        times = [work.do(step, do_job) for step in work.steps]
        assert [each is not None for each in times] == [False] * (len(times) - 1) + [True]
        work.clean_up()


def publish(build: Build, output: Storage, tell: Callable[[str], None] = quiet) -> Build | None:
    """Make the parts one output; return the next phase of a build that has two."""
    return lifecycle.finish(build, output, tell)


def second_phase(build: B, output: Storage) -> B:
    """Return the second phase of a build whose first phase is done."""
    after = lifecycle.finish(build, output, quiet)
    assert isinstance(after, type(build))
    return after


def finish(build: Build, output: Storage) -> None:
    """Do what is left of a started build, and publish it."""
    left: Build | None = build
    while left is not None and not left.published:
        do_parts(left, output)
        left = publish(left, output)
    output.close()
    lifecycle.release_scratch(build)


def make(build: B, output: Storage) -> B:
    """Make a build from beginning to end, and return it as it was started."""
    build = begun(build, output)
    if build.published:
        lifecycle.end_killed_run(build, output, quiet)
    finish(build, output)
    return build


def planned(plan: Callable[[Any, Storage], B], config: Any) -> tuple[B, Storage]:
    """Plan a build with a function, and start it on the output that its configuration names."""
    output = open_storage(config.output)
    return begun(plan(config, output), output), output


def complete(plan: Callable[[Any, Storage], B], config: Any) -> B:
    """Plan and make a build, its parts in reverse order, and return it as it was started."""
    build, output = planned(plan, config)
    if not build.published:
        do_parts(build, output, reversed(build.todo))
        finish(replace(build, todo=()), output)
    return build
