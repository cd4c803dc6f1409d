"""The flow `shard-dataset`: source files in, a published dataset out."""

import threading
import time

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.dashboard.drawing import load_drawing
from flows.dashboard.updates import dashboard, leave_report, name_the_failure
from flows.executors import Executor
from flows.executors.look_ahead import MAX_THREADS
from flows.executors.stage import STAGES
from flows.flow_body import Begun, leave_record, outcome_of, run_body, run_name
from flows.preparation import preparing
from streaming_ext.dataset.manifest import Manifest
from tasks.arrange import arrange
from tasks.core.config import ShardConfig
from tasks.core.planning.run_plan import RunPlan
from tasks.core.reporting.progress import RunProgress, watched
from tasks.core.reporting.report import (
    FailedFile,
    PartTimes,
    RunReport,
)
from tasks.core.storage import Storage
from tasks.publish import publish
from tasks.running.run import Planned


@flow(
    name="shard-dataset",
    flow_run_name=lambda: run_name("shard"),
    task_runner=ThreadPoolTaskRunner(max_workers=MAX_THREADS),  # type: ignore[arg-type]
    persist_result=False,
    on_failure=[name_the_failure],
)
def shard_dataset(config: ShardConfig, output: str | None = None) -> State:
    """Shard source files into a tokenized MDS dataset with a holdout split.

    Run again after any stop: parts that are recorded are kept, the rest is done, and the bytes
    are those of an undisturbed run.

    Args:
        config: what to shard, into what, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return run_body(config, output, make_dataset)


def make_dataset(config: ShardConfig) -> State:
    """RunPlan, shard, publish and report; returns how the flow run ended."""
    progress = watched()
    progress.run = str(flow_run.id)
    threading.Thread(target=load_drawing, daemon=True).start()  # for the report
    with (
        dashboard(progress),  # first, so that workers end before its last update
        preparing(config, progress) as prepared,
    ):
        plan, storage = prepared.plan, prepared.storage
        if prepared.executor is None:
            return Completed(message=f"{storage} is whole already; nothing to do.")
        report = shard(plan, storage, prepared.executor, progress, Begun())
    progress.report = report
    return outcome_of(report)


def shard(
    plan: RunPlan, storage: Storage, executor: Executor, progress: RunProgress, begun: Begun
) -> RunReport:
    """Do all parts that are missing, publish if none failed, and report.

    Args:
        plan: of the run.
        storage: of its output.
        executor: does the parts.
        progress: what people watch.
        begun: when the first part was.

    Raises:
        ShardmillError: a fault that every other part would meet too, or storage that failed all
            parts in hand.
    """
    sources = plan
    done, failed = _through(plan, storage, executor, progress)
    gathered: list[PartTimes] = []
    gather_seconds = 0.0
    if plan.stage == "scatter" and not failed:
        between = time.monotonic()
        plan = arrange(Planned(plan, storage, progress.enter))
        executor.prepare(plan, storage)
        gathered, failed = _through(plan, storage, executor, progress)
        gather_seconds = time.monotonic() - between
    manifest: Manifest | None = None
    if not failed:
        progress.enter(STAGES[plan.stage].behind)
        manifest = publish(Planned(plan, storage, progress.enter))
    report = begun.report(
        workers=plan.config.workers,
        engine=None if plan.config.light else plan.config.engine,
        output=str(storage),
        parts=sources.parts,
        todo=sources.todo,
        done=done,
        failed=failed,
        shard_bytes=sum(times.shard_bytes for times in gathered or done),
        sources_not_checked=manifest.not_checked if manifest else 0,
        duplicate_documents=manifest.duplicate_documents if manifest else 0,
        duplicate_tokens=manifest.duplicate_tokens if manifest else 0,
        gathered=tuple(sorted(gathered, key=lambda times: times.part)),
        gather_seconds=gather_seconds,
    )
    progress.end()
    leave_record(report, storage)
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
