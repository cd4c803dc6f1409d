"""The Prefect tasks: a step of a part in a worker process, and what follows all parts."""

from functools import cache
from typing import Any

from prefect import Task, task

from streaming_ext.base.errors import TransientStorageError, one_line
from streaming_ext.store import Storage
from streaming_ext.text.parts import Part
from tasks.core.build import engine
from tasks.core.build.build import Build, Step
from tasks.core.build.run import Run
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import PartTimes
from tasks.prefect_tasks import OURS


@task(**OURS)
def do_step(run: Run, part: Part, step: Step) -> PartTimes | None:
    """Do one step of a part; returns what the part took once all its steps are done.

    Raises:
        ShardmillError: whatever the worker met.
    """
    return run.do(step, part)


@cache
def task_of(step: str) -> Task[..., PartTimes | None]:
    """The task of a step, under the name that people see."""
    return do_step.with_options(name=step, task_run_name=f"{step} {{part}}")


@task(**OURS)
def finish(build: Build, output: Storage, progress: RunProgress) -> Build | None:
    """Make the parts one output, or prepare the next phase; returns that phase."""

    def on_status(words: str) -> None:
        progress.enter(f"{build.words.finishing}, {words}")

    try:
        return engine.finish(build, output, on_status)
    except TransientStorageError as error:
        on_status(f"waiting to try again: {one_line(error)}")
        raise


def finish_task(build: Build) -> Task[..., Any]:
    """The task that follows all parts, under the name that people see."""
    name = "arrange" if build.phase == "sort" else "publish"
    return finish.with_options(name=name, task_run_name=name)
