"""The steps of every flow that makes an output: plan, lock the output, make parts, publish."""

import platform
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Completed, Failed
from prefect.utilities.annotations import opaque

from flows.dashboard.report_page import leave_report
from flows.dashboard.updates import REPORT_AT, dashboard
from flows.executors.here import Executor, here
from flows.prefect_api.cancellation import ending_early
from flows.prefect_api.connection import leaving_without_a_server
from flows.terminal.printing import parts_text, visible
from flows.watched import Config, Plan, WatchedRun, watched
from streaming_ext.base.errors import StoppedError, StorageError, UsageError
from streaming_ext.base.extras import extras_named
from streaming_ext.base.threads import cores
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.schema import to_json
from streaming_ext.store import Storage
from streaming_ext.store.locations import holds_secret, local_path, require_no_secret
from tasks.core.engine import lifecycle
from tasks.core.engine.build import Build
from tasks.core.linux import require_linux
from tasks.core.options import Execution, ExecutionOnHosts
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import (
    FailedFile,
    PartTimes,
    RunReport,
    installed_versions,
    left_out_counts,
    report_path,
)
from tasks.core.shard.run_plan import RunPlan
from tasks.core.workers.pool import WorkerPool
from tasks.steps import finish_task

_MOST_REASONS = 3  # in the message of a failed run


def run_name(words: str) -> str:
    """Return the name of a flow run, which contains its output."""
    given = flow_run.parameters
    output = given["output"] or given["config"].output
    return f"{words}: refused" if holds_secret(output) else visible(f"{words} {output}")


def build_output(
    plan: Plan[Config], config: Config, output: str | None, *, field: str = "output"
) -> State:
    """Make an output within a flow run, and return the final state of the run.

    Args:
        plan: a function that plans the build, and writes nothing.
        config: the configuration of the run.
        output: an output that replaces the configured one.
        field: the field of the configuration that names the output.
    """
    if output is not None:
        require_no_secret(output, "output")
        config = config.model_copy(update={field: output})
    require_linux()
    require_absolute(config.output)
    run = watched()
    run.progress.listeners.append(get_run_logger().info)
    try:
        with leaving_without_a_server(), ending_early(run.progress):
            return _build(plan, config, run)
    except StoppedError as stop:
        return Cancelled(message=f"Stopped: {stop}.")


def require_absolute(output: str) -> None:
    """Refuse a relative output of a deployed run.

    Raises:
        UsageError: the output is relative to the folder of the run, which the worker removes.
    """
    if deployment.id and "://" not in output and not local_path(output).is_absolute():
        raise UsageError(
            f"output {output!r}: a worker runs in a folder that is removed when the run ends. "
            "Give an absolute path or a URL."
        )


def _build(plan: Plan[Config], config: Config, run: WatchedRun) -> State:
    """Plan, hold the output, make what is missing, and report."""
    progress = run.progress
    progress.run = str(flow_run.id)
    # The dashboard is outermost, so that workers end before its last update.
    with dashboard(progress), run.holding(plan, config) as (build, output):
        if build.published:
            return Completed(message=f"{output} is complete; nothing to do.")
        with open_executor(build.config, run.pools) as executor:
            report = _do_phases(run.begin(), output, executor, progress)
        lifecycle.release_scratch(build, resumable=bool(report.failed))
        progress.report = report
        return _final_state(report, progress.page)


def open_executor(
    config: Execution, pools: tuple[WorkerPool, WorkerPool] | None
) -> AbstractContextManager[Executor]:
    """Return the executor of a run; when its block ends, all work that it started has ended.

    Args:
        config: the configuration, which names the executor.
        pools: the worker processes of this host; None if other hosts make the parts.
    """
    if pools is not None:
        return here(*pools)
    assert isinstance(config, ExecutionOnHosts)  # noqa: S101  (the run has no pools)
    scheme, _, name = config.executor.partition("://")
    if scheme == "prefect":
        from flows.executors.on_hosts import on_work_pool

        return on_work_pool(name, partitions=config.partitions)
    with extras_named():
        from flows.executors.dask import on_dask
    return on_dask(f"{'tls' if scheme == 'dask+tls' else 'tcp'}://{name}")


def _do_phases(
    build: Build, output: Storage, executor: Executor, progress: RunProgress
) -> RunReport:
    """Make all remaining parts, phase by phase; publish if none failed; return a report.

    Raises:
        ShardmillError: an error would also occur in every other part, or the storage failed for
            all parts in hand.
    """
    began, clock = datetime.now(UTC), time.monotonic()
    failed: list[FailedFile] = []
    phases: list[tuple[PartTimes, ...]] = []
    following: Build | None = build
    while following is not None and not failed:
        last, started = following, time.monotonic()
        results = sorted(executor(last, output, progress), key=lambda result: result.part)
        phases.append(tuple(result for result in results if isinstance(result, PartTimes)))
        failed = [result for result in results if isinstance(result, FailedFile)]
        if not failed:
            progress.enter(last.words.finishing)
            progress.tasks += 1
            # Without `opaque`, Prefect would look for futures in all parts.
            following = finish_task(last)(opaque(last), output, progress, return_state=False)
    done, merged = phases[0], phases[-1] if len(phases) > 1 else ()
    report = RunReport(
        run=str(flow_run.id),
        began=began,
        seconds=time.monotonic() - clock,
        host=platform.node(),
        cores=cores(),
        workers=build.config.workers,
        versions=installed_versions(),
        engine=", ".join(sorted({times.engine for times in done} - {""})) or None,
        output=str(output),
        files=len(build.parts),
        files_skipped=len(build.parts) - len(build.todo),
        files_done=len(done),
        failed=tuple(failed),
        text_bytes=sum(times.text_bytes for times in done),
        tokens=sum(times.tokens for times in done),
        shard_bytes=sum(times.shard_bytes for times in merged or done),
        published=not failed,
        parts=done,
        merged=merged,
        merge_seconds=time.monotonic() - started if len(phases) > 1 else 0.0,
    )
    if isinstance(build, RunPlan):
        left_out = {} if failed else left_out_counts(read_manifest(output))
        report = report.model_copy(update={"engine": report.engine or build.engine, **left_out})
    progress.end(last.words.done)
    _save_record(report, output)
    if isinstance(build, RunPlan):
        leave_report(report, build, output, progress)
    return report


def _save_record(report: RunReport, output: Storage) -> None:
    try:
        output.put(report_path(report, ".json"), to_json(report))
    except StorageError as error:  # such as a full disk; the dataset is complete without the record
        get_run_logger().warning("The record of this run is missing: %s", error)


def _final_state(report: RunReport, page: str | None) -> State:
    where = f"{REPORT_AT}{page}" if page else ""
    if report.failed:
        reasons = "; ".join(map(str, report.failed[:_MOST_REASONS]))
        more = "; ..." if len(report.failed) > _MOST_REASONS else ""
        words = f"{len(report.failed)} of {report.files} parts failed: {reasons}{more}"
        return Failed(message=words + where)
    return Completed(
        message=f"parts: {parts_text(report)}; {report.tokens:,} tokens new in {report.output}, "
        f"{report.megabytes_per_second:.1f} MB/s{where}"
    )
