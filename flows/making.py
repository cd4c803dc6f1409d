"""What every flow that makes an output does: plan, hold the output, make its parts, publish."""

import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, Self, TypeVar

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Completed, Failed
from prefect.utilities.annotations import opaque

from flows.dashboard.updates import dashboard, leave_report
from flows.executors import Executor, open_executor
from flows.prefect_api.cancellation import ending_without_a_worker, stopped_by_signals
from flows.prefect_api.connection import leaving_without_a_server
from flows.terminal.drawing import load_drawing
from flows.terminal.visible import visible
from streaming_ext.base.errors import StoppedError, StorageError, UsageError
from streaming_ext.store import Storage, open_storage
from streaming_ext.store.locations import holds_secret, local_path, require_no_secret
from tasks.core.build import engine
from tasks.core.build.build import Build, Tell
from tasks.core.linux import require_linux
from tasks.core.reporting.progress import RunProgress, watched
from tasks.core.reporting.report import (
    FailedFile,
    PartTimes,
    RunReport,
    installed_versions,
    save_report,
)
from tasks.core.shard.run_plan import RunPlan
from tasks.steps import finish_task


class HasOutput(Protocol):
    """A configuration, as far as all flows take of it."""

    @property
    def output(self) -> str: ...
    def model_copy(self, *, update: dict[str, Any]) -> Self: ...


Config = TypeVar("Config", bound=HasOutput)
Plan = Callable[[Config, Storage, Tell], Build]


def run_name(words: str) -> str:
    """The name of a flow run, by its output."""
    given = flow_run.parameters
    output = given["output"] or given["config"].output
    return f"{words}: refused" if holds_secret(output) else visible(f"{words} {output}")


def make_output(config: Config, output: str | None, plan: "Plan[Config]") -> State:
    """Make an output within a flow run; returns how the run ended.

    Args:
        config: of the run.
        output: in place of the one in `config`, for a deployment that is run on several.
        plan: says what has to be done; nothing is written.
    """
    if output is not None:
        require_no_secret(output, "output")
        config = config.model_copy(update={"output": output})
    require_linux()
    require_absolute(config)
    try:
        with (
            leaving_without_a_server(),
            stopped_by_signals(watched()),
            ending_without_a_worker(),
        ):
            return _make(config, plan)
    except StoppedError as stop:
        return Cancelled(message=f"Stopped: {stop}.")


def require_absolute(config: HasOutput) -> None:
    """A worker runs each flow in a folder of its own, and removes that in the end.

    Raises:
        UsageError: a deployed run would lose its output there.
    """
    output = config.output
    if deployment.id and "://" not in output and not local_path(output).is_absolute():
        raise UsageError(
            f"output {output!r}: a worker runs in a folder that is removed when the run ends. "
            "Give an absolute path or a URL."
        )


def _make(config: Config, plan: "Plan[Config]") -> State:
    """Plan, hold the output, make what is missing, and report."""
    progress = watched()
    progress.run = str(flow_run.id)
    threading.Thread(target=load_drawing, daemon=True).start()  # for the report
    output = open_storage(config.output)
    with dashboard(progress):  # first, so that workers end before its last update
        seen = engine.state_of(output)
        build = plan(config, output, progress.enter)
        whole: State = Completed(message=f"{output} is whole already; nothing to do.")
        if build.published and not engine.is_begun(build, output):
            output.tidy(build.scratch)
            return whole
        output.create()
        with output.exclusive(progress.enter) as lock:
            progress.enter("looking at what is there")
            if engine.state_of(output) != seen:  # by a run that ended meanwhile
                build = plan(config, output, progress.enter)
            if build.published:
                engine.settle(build, output, progress.enter)
                output.close()
                return whole
            inherited = [] if lock is None else [lock]
            with open_executor(build, inherited=inherited) as executor:
                build = engine.begin(build, output, progress.enter)
                report = _work(build, output, executor, progress)
            output.close()  # the executor has told other hosts through it that the run is over
        engine.drop(build, resumable=bool(report.failed))
        progress.report = report
        return _outcome(report)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Phase:
    """What became of the parts of a phase, and how long it took."""

    build: Build
    done: list[PartTimes] = field(default_factory=list)
    failed: list[FailedFile] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)


def _work(
    build: Build, output: Storage, executor: Executor[Any], progress: RunProgress
) -> RunReport:
    """Do all parts that are missing, phase by phase; publish if none failed, and report.

    Raises:
        ShardmillError: a fault that every other part would meet too, or storage that failed all
            parts in hand.
    """
    began = datetime.now(UTC)
    phases: list[_Phase] = []
    left: Build | None = build
    while left is not None:
        phases.append(phase := _Phase(build=left))
        executor.prepare(left, output)
        for result in executor.finished(left, output, progress):
            progress.note(result)
            if isinstance(result, FailedFile):
                phase.failed.append(result)
            else:
                phase.done.append(result)
        if phase.failed:
            break
        progress.enter(left.words.finishing)
        after: Any = finish_task(left)(opaque(left), output, progress)  # no parts to look through
        left = after
    report = _report(phases, output, began)
    progress.end(phases[-1].build.words.done)
    _leave_record(report, output)
    if isinstance(build, RunPlan):
        leave_report(report, build, output, progress)
    return report


def _report(phases: list[_Phase], output: Storage, began: datetime) -> RunReport:
    """What became of the parts, in all phases."""
    first, *others = phases
    build, done, last = first.build, first.done, phases[-1]
    merged = [times for phase in others for times in phase.done]
    failed = [failure for phase in phases for failure in phase.failed]
    return RunReport(
        run=str(flow_run.id),
        began=began,
        seconds=time.monotonic() - first.began,
        host=platform.node(),
        cores=os.cpu_count(),
        workers=build.config.workers,
        versions=installed_versions(),
        engine=build.engine,
        output=str(output),
        files=len(build.parts),
        files_skipped=len(build.parts) - len(build.todo),
        files_done=len(done),
        failed=tuple(failed),
        text_bytes=sum(times.text_bytes for times in done),
        tokens=sum(times.tokens for times in done),
        shard_bytes=sum(times.shard_bytes for times in merged or done),
        published=not failed,
        parts=tuple(sorted(done, key=lambda times: times.part)),
        merged=tuple(sorted(merged, key=lambda times: times.part)),
        merge_seconds=time.monotonic() - others[0].began if others else 0.0,
        **({} if failed else last.build.report_fields(output)),
    )


def _leave_record(report: RunReport, output: Storage) -> None:
    """Put a report beside the output, which is what it is without it, as on a full disk."""
    try:
        save_report(report, output)
    except StorageError as error:
        get_run_logger().warning("The record of this run is missing, all else is there: %s", error)


def _outcome(report: RunReport) -> State:
    """How the flow run ended."""
    if report.failed:
        reasons = "; ".join(str(failed) for failed in report.failed[:3])
        return Failed(
            message=f"{len(report.failed)} of {report.files} parts failed: {reasons}"
            + ("; ..." if len(report.failed) > 3 else "")
        )
    return Completed(
        message=f"{report.files_done} of {report.files} parts, {report.tokens:,} tokens new in "
        f"{report.output}, {report.megabytes_per_second:.1f} MB/s"
    )
