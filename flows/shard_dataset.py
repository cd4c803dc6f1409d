"""The flow `shard-dataset`: source files in, a published dataset out."""

import os
import platform
import time
from datetime import UTC, datetime
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.dashboard import dashboard, leave_report, name_the_failure
from flows.look_ahead import PartEnd, done_in_any_order
from flows.visible import visible
from streaming_ext.errors import ShardmillError
from tasks.core.config import ShardConfig
from tasks.core.jobs import PrepareJob
from tasks.core.plan import check_sources, make_plan, remove_scratch
from tasks.core.pool import WorkerPool
from tasks.core.progress import watched
from tasks.core.report import FailedFile, PartTimes, RunReport, installed_versions, save_report
from tasks.core.storage import open_storage
from tasks.publish import publish
from tasks.run import Part, Run

LOOK_AHEAD_FILES = 2  # beside one a worker: enough that no worker waits, and little scratch
_MAX_THREADS = 4096  # of the task runner; it starts them as they are needed


def _run_name() -> str:
    return visible(f"shard {flow_run.parameters['config'].output}")


@flow(
    name="shard-dataset",
    flow_run_name=_run_name,
    task_runner=ThreadPoolTaskRunner(max_workers=_MAX_THREADS),  # type: ignore[arg-type]
    persist_result=False,
    on_failure=[name_the_failure],
)
def shard_dataset(config: ShardConfig) -> State[Any]:
    """Shard source files into a tokenized MDS dataset with a holdout split.

    Run again after any stop: parts that are recorded are kept, the rest is done, and the bytes
    are those of an undisturbed run.
    """
    progress = watched()
    progress.enter("looking at the sources")
    sources = check_sources(config)
    storage = open_storage(config.output)
    storage.create()
    with storage.exclusive() as lock:
        size = min(config.workers, len(sources))
        inherited = [] if lock is None else [lock]
        with (
            dashboard(progress),  # first, so that workers end before its last update
            WorkerPool(size, inherited=inherited) as pool,
            WorkerPool(size + LOOK_AHEAD_FILES, inherited=inherited, light=True) as movers,
        ):
            progress.enter("preparing the tokenizer")
            plan = make_plan(config, storage, sources)
            if plan.published:
                return Completed(message=f"{storage} is whole already; nothing to do.")
            pool.run_in_each(
                PrepareJob(tokenizer_folder=str(plan.tokenizer_folder), engine=config.engine)
            )
            report = shard(Run(plan, storage, pool, progress, movers))
        storage.close()
        remove_scratch(plan)
    progress.report = report
    if report.failed:
        reasons = "; ".join(str(failed) for failed in report.failed[:3])
        return Failed(
            message=f"{len(report.failed)} of {report.files} files failed: {reasons}"
            + ("; ..." if len(report.failed) > 3 else "")
        )
    return Completed(
        message=f"{report.files} files, {report.tokens:,} tokens new in {report.output}, "
        f"{report.megabytes_per_second:.1f} MB/s"
    )


def shard(run: Run) -> RunReport:
    """Do all parts that are missing, publish if none failed, and report.

    Raises:
        ShardmillError: a fault that every other part would meet too.
    """
    logger = get_run_logger()
    plan = run.plan
    parts = [Part(number, plan.sources[number]) for number in plan.todo]
    began, clock = datetime.now(UTC), time.monotonic()
    run.progress.begin(files=len(parts), source_bytes=sum(part.source.size for part in parts))
    run.progress.enter("sharding")
    done: list[PartTimes] = []
    failed: list[FailedFile] = []
    # A part that is being uploaded leaves its worker free for the next one.
    uploading = plan.config.workers if run.storage.uploads_at_once > 1 else 0
    at_once = plan.config.workers + LOOK_AHEAD_FILES + uploading
    for end in done_in_any_order(run, parts, at_once=at_once):
        run.forget(end.part)
        fault = _fault(end)
        run.progress.finish(
            end.part.number, source_bytes=end.part.source.size, failed=fault is not None
        )
        run.progress.note(fault or end.state.result())
        if fault is None:
            done.append(end.state.result())
        else:
            failed.append(fault)
            logger.error("Failed: %s", fault)
    if not failed:
        run.progress.enter("publishing")
        publish(run)
    report = RunReport(
        run=str(flow_run.id),
        began=began,
        seconds=time.monotonic() - clock,
        host=platform.node(),
        cores=os.cpu_count(),
        workers=plan.config.workers,
        versions=installed_versions(),
        engine=plan.config.engine,
        output=str(run.storage),
        files=len(plan.sources),
        files_skipped=len(plan.sources) - len(parts),
        files_done=len(done),
        failed=tuple(failed),
        text_bytes=sum(times.text_bytes for times in done),
        tokens=sum(times.tokens for times in done),
        shard_bytes=sum(times.shard_bytes for times in done),
        published=not failed,
        parts=tuple(sorted(done, key=lambda times: times.part)),
    )
    run.progress.end()
    save_report(report, run.storage)
    leave_report(report, plan, run.storage, run.progress)
    return report


def _fault(end: PartEnd) -> FailedFile | None:
    """Why a part failed, if it did; a fault that every other part would meet too is raised."""
    if end.state.is_completed():
        return None
    try:
        end.state.result()
    except ShardmillError as error:
        if error.fatal:
            raise
        source = end.part.source.url
        return FailedFile(
            part=end.part.number,
            source=source,
            step=end.step,
            reason=str(error),
            host=platform.node(),
        )
    raise RuntimeError(f"{end.part}: {end.step} ended as {end.state.name} without a reason")
