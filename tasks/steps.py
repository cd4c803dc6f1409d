"""The Prefect tasks: a step of a part in a worker process, and the task that follows all parts."""

from functools import cache
from typing import Any, Final

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from streaming_ext.base.errors import (
    ShardmillError,
    TransientStorageError,
    UsageError,
    one_line,
)
from streaming_ext.store import Storage
from streaming_ext.store.patience import patience
from streaming_ext.text.parts import Part
from tasks.core.engine import lifecycle
from tasks.core.engine.build import Build, Step
from tasks.core.engine.run import Run
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import PartTimes


def retry_pauses(count: int) -> list[float]:
    """Return the seconds to wait before each retry of a task.

    They scale with the time limit of storage, so a user who sets a short one does not wait long.
    """
    try:
        factor = patience()
    except UsageError:  # reported when the first request is made
        factor = 1.0
    return [pause * factor for pause in (1, 5, 20, 60)[:count]]


def is_transient(task: Task[..., object], task_run: TaskRun, state: State) -> bool:
    """Return whether Prefect tries a task again; it does so only if that may help."""
    try:
        state.result()
    except ShardmillError as error:
        return error.transient
    except Exception:  # noqa: BLE001  trying again helps against no other error
        return False
    return False


OURS: Final[dict[str, Any]] = {
    "retries": 3,
    "retry_delay_seconds": retry_pauses,
    "retry_condition_fn": is_transient,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}


@task(**OURS)
def do_step(run: Run, part: Part, step: Step) -> PartTimes | None:
    """Do one step of a part; return the times of the part once all its steps are done.

    Raises:
        ShardmillError: the error of the worker.
    """
    return run.do(step, part)


@cache
def task_of(step: str) -> Task[[Run, Part, Step], PartTimes | None]:
    """Return the task of a step, named as Prefect shows it."""
    return do_step.with_options(name=step, task_run_name=f"{step} {{part}}")


@task(**OURS)
def finish(build: Build, output: Storage, progress: RunProgress) -> Build | None:
    """Turn the parts into one output, or prepare the next phase and return it."""

    def on_status(words: str) -> None:
        progress.enter(f"{build.words.finishing}, {words}")

    try:
        return lifecycle.finish(build, output, on_status)
    except TransientStorageError as error:
        on_status(f"waiting to try again: {one_line(error)}")
        raise


def finish_task(build: Build) -> Task[[Build, Storage, RunProgress], Build | None]:
    """Return the task that follows all parts, named as Prefect shows it."""
    name = build.words.finish_task
    return finish.with_options(name=name, task_run_name=name)
