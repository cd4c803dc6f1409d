"""The flow `shard-dataset`: source files in, a published dataset out."""

import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.dashboard.updates import dashboard, leave_report, name_the_failure
from flows.executors import Executor
from flows.executors.look_ahead import MAX_THREADS
from flows.executors.stage import STAGES
from flows.prefect_api.cancellation import ending_without_a_worker, stopped_by_signals
from flows.prefect_api.departure import leaving_without_a_server
from flows.prefect_api.heartbeat import beating
from flows.preparation import preparing
from flows.terminal.visible import visible
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.errors import StoppedError, UsageError
from streaming_ext.storage.secrets import holds_secret, require_no_secret
from tasks.arrange import arrange
from tasks.core.config import ShardConfig
from tasks.core.linux import require_linux
from tasks.core.planning.plan import remove_scratch
from tasks.core.planning.run_plan import RunPlan
from tasks.core.reporting.progress import RunProgress, watched
from tasks.core.reporting.report import (
    FailedFile,
    PartTimes,
    RunReport,
    installed_versions,
    save_report,
)
from tasks.core.storage import Storage
from tasks.publish import publish
from tasks.running.run import Planned


def _run_name() -> str:
    given = flow_run.parameters
    output = given["output"] or given["config"].output
    return "shard: refused" if holds_secret(output) else visible(f"shard {output}")


@flow(
    name="shard-dataset",
    flow_run_name=_run_name,
    task_runner=ThreadPoolTaskRunner(max_workers=MAX_THREADS),  # type: ignore[arg-type]
    persist_result=False,
    on_failure=[name_the_failure],
)
def shard_dataset(config: ShardConfig, output: str | None = None) -> State[Any]:
    """Shard source files into a tokenized MDS dataset with a holdout split.

    Run again after any stop: parts that are recorded are kept, the rest is done, and the bytes
    are those of an undisturbed run.

    Args:
        config: what to shard, into what, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    if output is not None:
        require_no_secret(output, "output")
        config = config.model_copy(update={"output": output})
    require_linux()
    require_absolute(config)
    try:
        with (
            leaving_without_a_server(),
            beating(),
            stopped_by_signals(watched()),
            ending_without_a_worker(),
        ):
            return make_dataset(config)
    except StoppedError as stop:
        return Cancelled(message=f"Stopped: {stop}.")


def make_dataset(config: ShardConfig) -> State[Any]:
    """RunPlan, shard, publish and report; returns how the flow run ended."""
    progress = watched()
    progress.run = str(flow_run.id)
    with (
        dashboard(progress),  # first, so that workers end before its last update
        preparing(config, progress) as prepared,
    ):
        plan, storage = prepared.plan, prepared.storage
        if prepared.executor is None:
            return Completed(message=f"{storage} is whole already; nothing to do.")
        report = shard(plan, storage, prepared.executor, progress)
        storage.close()
        remove_scratch(plan)
    progress.report = report
    if report.failed:
        reasons = "; ".join(str(failed) for failed in report.failed[:3])
        return Failed(
            message=f"{len(report.failed)} of {report.files} parts failed: {reasons}"
            + ("; ..." if len(report.failed) > 3 else "")
        )
    return Completed(
        message=f"{report.files_done} of {report.files} parts, {report.tokens:,} tokens new in "
        f"{report.output}, "
        f"{report.megabytes_per_second:.1f} MB/s"
    )


def require_absolute(config: ShardConfig) -> None:
    """A worker runs each flow in a folder of its own, and removes that in the end.

    Raises:
        UsageError: a deployed run would lose its output there.
    """
    output = config.output
    if deployment.id and "://" not in output and not Path(output).expanduser().is_absolute():
        raise UsageError(
            f"output {output!r}: a worker runs in a folder that is removed when the run ends. "
            "Give an absolute path or a URL."
        )


def shard(plan: RunPlan, storage: Storage, executor: Executor, progress: RunProgress) -> RunReport:
    """Do all parts that are missing, publish if none failed, and report.

    Raises:
        ShardmillError: a fault that every other part would meet too, or storage that failed all
            parts in hand.
    """
    began, clock = datetime.now(UTC), time.monotonic()
    sources = plan
    done, failed = _through(plan, storage, executor, progress)
    gathered: list[PartTimes] = []
    gather_seconds = 0.0
    if plan.stage == "scatter" and not failed:
        between = time.monotonic()
        progress.begin_task_run()
        plan = arrange(Planned(plan, storage, progress.enter))
        executor.prepare(plan, storage)
        gathered, failed = _through(plan, storage, executor, progress)
        gather_seconds = time.monotonic() - between
    manifest: Manifest | None = None
    if not failed:
        progress.enter(STAGES[plan.stage].behind)
        progress.begin_task_run()
        manifest = publish(Planned(plan, storage, progress.enter))
    report = RunReport(
        run=str(flow_run.id),
        began=began,
        seconds=time.monotonic() - clock,
        host=platform.node(),
        cores=os.cpu_count(),
        workers=plan.config.workers,
        versions=installed_versions(),
        engine=plan.config.engine,
        output=str(storage),
        files=len(sources.parts),
        files_skipped=len(sources.parts) - len(sources.todo),
        files_done=len(done),
        failed=tuple(failed),
        text_bytes=sum(times.text_bytes for times in done),
        tokens=sum(times.tokens for times in done),
        shard_bytes=sum(times.shard_bytes for times in gathered or done),
        published=not failed,
        parts=tuple(sorted(done, key=lambda times: times.part)),
        sources_not_checked=manifest.not_checked if manifest else 0,
        duplicate_documents=manifest.duplicate_documents if manifest else 0,
        duplicate_tokens=manifest.duplicate_tokens if manifest else 0,
        gathered=tuple(sorted(gathered, key=lambda times: times.part)),
        gather_seconds=gather_seconds,
    )
    progress.end()
    save_report(report, storage)
    leave_report(report, sources, storage, progress)
    return report


def _through(
    plan: RunPlan, storage: Storage, executor: Executor, progress: RunProgress
) -> tuple[list[PartTimes], list[FailedFile]]:
    """Take all parts that are missing through a stage; returns what was done and what failed."""
    done: list[PartTimes] = []
    failed: list[FailedFile] = []
    for result in executor.finished(plan, storage, progress):
        progress.note(result)
        if isinstance(result, FailedFile):
            failed.append(result)
        else:
            done.append(result)
    return done, failed
