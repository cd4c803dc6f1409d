"""Prefect's dashboard as the place to watch a run: its progress, parts, hosts and report.

A run has four artifacts. Three of them are changed in place while it runs, every few seconds and
only if there is something new; the report is made in the end. An error here is logged once and
does not affect the run.
"""

import json
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import Pause
from prefect.flows import Flow
from prefect.runtime import flow_run

from flows.dashboard.report_page import ReportPage
from flows.dashboard.tables import (
    METADATA,
    PROGRESS,
    SNAPSHOT,
    describe_hosts,
    describe_parts,
    hosts_table,
    parts_table,
)
from flows.prefect_api.cancellation import is_suspended
from flows.terminal.printing import visible
from flows.terminal.run_progress import describe
from streaming_ext.base.errors import ShardmillError, StoppedError
from streaming_ext.store import Storage
from tasks.core.reporting.figures import make_figures
from tasks.core.reporting.lengths import sample_lengths
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import RunReport, report_path
from tasks.core.shard.run_plan import RunPlan
from tasks.core.workers.pool import InternalError

PARTS, HOSTS, REPORT = "shard-parts", "shard-hosts", "shard-report"
FIRST_SECONDS = 5.0  # a run that ends within this has only the report
UPDATE_SECONDS = 5.0
_END_SECONDS = 3.0  # for the last update: a slow server must not hold up the run
_MOST_NAME = 300  # characters
_FOLDERS = re.compile(r"(?<![^\s/])(?:/|[\w+.-]+://)(?:[^/\s]+/)+(?=[^/\s]+/[^/\s]+)")


@contextmanager
def dashboard(progress: RunProgress) -> Iterator[None]:
    """Keep the artifacts of the current flow run up to date until the block ends."""
    updates = Updates(progress, UUID(str(flow_run.id)), get_run_logger())
    # The thread uses the API of this run, which the context may set.
    context = copy_context()
    thread = threading.Thread(target=lambda: context.run(updates.keep), daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:
        failed = isinstance(error, Exception) and not isinstance(error, StoppedError)
        suspended = is_suspended() or isinstance(error, Pause)
        progress.stop("suspended" if suspended else "failed" if failed else "stopped")
        raise
    finally:
        updates.ended.set()
        thread.join(_END_SECONDS)


class Updates:
    """Shows the counters of a run.

    Each artifact is made once and then changed in place. The client's own `create_artifact` and
    `update_artifact` also send an event with all the data, and the server would keep every version
    for a week.
    """

    def __init__(self, progress: RunProgress, run: UUID, logger: Any) -> None:
        self.ended = threading.Event()
        self._progress, self._run, self._logger = progress, run, logger
        self._shown: dict[str, tuple[str, dict[str, Any]]] = {}  # key -> id and content
        self._warned = False

    def keep(self) -> None:
        """Update every few seconds until the end, and once more in the end."""
        if self.ended.wait(FIRST_SECONDS):
            return
        try:
            with get_client(sync_client=True) as client:
                ended = False
                while not ended:
                    self._update(client)
                    ended = self.ended.wait(UPDATE_SECONDS)
                self._update(client)
        except Exception as error:  # noqa: BLE001  no work depends on it
            self._warn(error)

    def _update(self, client: SyncPrefectClient) -> None:
        now = self._progress.snapshot()
        working, results = self._progress.files()
        total = now.source_bytes_total
        done = round(min(100 * now.source_bytes / total, 100), 1) if total else 0.0
        # If the run is killed, this line stays.
        at = "" if now.stopped else f", at {datetime.now(UTC):%H:%M} UTC"
        counters = {METADATA: SNAPSHOT.dump_json(now).decode()}
        try:
            self._put(client, PROGRESS, "progress", done, describe(now) + at, metadata_=counters)
            if working or results:
                parts, hosts = parts_table(working, results), hosts_table(working, results)
                words = describe_parts(working, results)
                self._put(client, PARTS, "table", json.dumps(parts), words)
                self._put(client, HOSTS, "table", json.dumps(hosts), describe_hosts(hosts))
        except Exception as error:  # noqa: BLE001  the next update tries again
            self._shown.clear()  # somebody may have deleted them
            self._warn(error)

    def _put(
        self,
        client: SyncPrefectClient,
        key: str,
        kind: str,
        data: Any,
        description: str,
        **more: Any,
    ) -> None:
        """Show this content, unless the artifact shows it already."""
        new = {"data": data, "description": description, **more}
        artifact, old = self._shown.get(key, (None, None))
        if artifact is None:
            fields = new | {"key": key, "type": kind, "flow_run_id": str(self._run)}
            artifact = client.request("POST", "/artifacts/", json=fields).json()["id"]
        elif new != old:
            client.request("PATCH", "/artifacts/{id}", json=new, path_params={"id": artifact})
        self._shown[key] = artifact, new

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            self._logger.warning("The dashboard is behind: %s: %s", type(error).__name__, error)


def leave_report(report: RunReport, plan: RunPlan, storage: Storage, progress: RunProgress) -> None:
    """Put the report for people on the output and into the dashboard."""
    path = report_path(report, ".html")
    parts = sorted([*plan.earlier, *report.parts], key=lambda part: part.part)
    try:
        lengths = sample_lengths(storage, report.merged if plan.spec.two_phases else parts)
        page = ReportPage(make_figures(report, plan.earlier, plan.spec, lengths), plan.spec)
        storage.put(path, page.html().encode())
        progress.page = f"{report.output}/{path}"
        create_markdown_artifact(page.markdown, key=REPORT, description=page.headline)
    except Exception as error:  # noqa: BLE001  the dataset is complete without it
        get_run_logger().warning("There is no report: %s: %s", type(error).__name__, error)


def name_the_failure(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Put the reason of a failure into the name of the run, as lists of runs show only names."""
    reason = (state.message or "").removeprefix("Flow run encountered an exception: ")
    # Paths without their folders: people see the first letters of a name.
    name = _FOLDERS.sub("…/", visible(f"{flow_run.name}: {reason}"))
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name[:_MOST_NAME])


class _ReasonsOnly(logging.Filter):
    """Drops messages of task runs that succeed, and tracebacks of errors with a clear message."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to keep a record."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, ShardmillError) and not isinstance(error, InternalError):
            record.exc_info = None
        ours = _OURS.fullmatch(str(getattr(record, "flow_name", "")))
        return not (ours and record.name == _TASK_RUNS and record.levelno <= logging.INFO)


_TASK_RUNS = "prefect.task_runs"
_OURS = re.compile(r"(shard|import|extend|export|copy|merge|subset)-(datasets?|partition)")
for _name in ("prefect.flow_runs", _TASK_RUNS):
    logging.getLogger(_name).addFilter(_ReasonsOnly())
