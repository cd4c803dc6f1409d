"""Prefect's dashboard as the place to watch a run: how far it is, its parts, its hosts, its report.

A run has four artifacts. Three are changed in place while it goes on, seldom and only where there
is something new; the report is made at its end. None of it can harm the work: what fails here is
told once in the log.
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

from flows.dashboard.followed import PROGRESS, to_metadata
from flows.dashboard.report_page import ReportPage
from flows.dashboard.tables import describe_hosts, describe_parts, hosts_table, parts_table
from flows.prefect_api.suspension import is_suspended
from flows.terminal.run_progress import describe
from flows.terminal.visible import visible
from streaming_ext.base.errors import ShardmillError, StoppedError
from streaming_ext.store import Storage
from tasks.core.reporting.figures import make_figures
from tasks.core.reporting.lengths import sample_lengths
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import RunReport, report_path
from tasks.core.shard.run_plan import RunPlan
from tasks.core.workers.pool import InternalError

PARTS, HOSTS, REPORT = "shard-parts", "shard-hosts", "shard-report"
FIRST_SECONDS = 5.0  # a run that is over by then is told by its report alone
UPDATE_SECONDS = 5.0
_END_SECONDS = 3.0  # for the last update; a server that takes longer does not hold up the run
_MOST_NAME = 300  # characters
_FOLDERS = re.compile(r"(?<![^\s/])(?:/|[\w+.-]+://)(?:[^/\s]+/)+(?=[^/\s]+/[^/\s]+)")


@contextmanager
def dashboard(progress: RunProgress) -> Iterator[None]:
    """Keep the artifacts of the current flow run up to date until the block ends."""
    updates = _Updates(progress, UUID(str(flow_run.id)), get_run_logger())
    # The thread talks to the API that this run talks to, which a context may have set.
    context = copy_context()
    thread = threading.Thread(target=lambda: context.run(updates.keep), daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:
        progress.stop(_how_it_ended(error))
        raise
    finally:
        updates.ended.set()
        thread.join(_END_SECONDS)


def _how_it_ended(error: BaseException) -> str:
    if is_suspended() or isinstance(error, Pause):
        return "suspended"
    failed = isinstance(error, Exception) and not isinstance(error, StoppedError)
    return "failed" if failed else "stopped"


class _Updates:
    """The thread that shows the counters of a run."""

    def __init__(self, progress: RunProgress, run: UUID, logger: Any) -> None:
        self.ended = threading.Event()
        self._progress = progress
        self._run = run
        self._logger = logger
        self._told = False

    def keep(self) -> None:
        """Show what there is, every few seconds, until the end; then once more if it was shown."""
        if self.ended.wait(FIRST_SECONDS):
            return
        try:
            with get_client(sync_client=True) as client:
                artifacts = _Artifacts(client, self._run)
                self._show(artifacts)
                while not self.ended.wait(UPDATE_SECONDS):
                    self._show(artifacts)
                self._show(artifacts)
        except Exception as error:  # noqa: BLE001  nobody's work depends on it
            self._tell(error)

    def _show(self, artifacts: "_Artifacts") -> None:
        now = self._progress.snapshot()
        working, results = self._progress.files()
        total = now.source_bytes_total
        done = round(min(100 * now.source_bytes / total, 100), 1) if total else 0.0
        # Nobody takes it back where the run is killed.
        at = "" if now.stopped else f", at {datetime.now(UTC):%H:%M} UTC"
        try:
            artifacts.put(
                PROGRESS, "progress", done, describe(now) + at, metadata_=to_metadata(now)
            )
            if working or results:
                parts = json.dumps(parts_table(working, results))
                artifacts.put(PARTS, "table", parts, describe_parts(working, results))
                hosts = hosts_table(working, results)
                artifacts.put(HOSTS, "table", json.dumps(hosts), describe_hosts(hosts))
        except Exception as error:  # noqa: BLE001  the next update tries again
            artifacts.shown.clear()  # somebody may have deleted them
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            self._logger.warning("The dashboard is behind: %s: %s", type(error).__name__, error)


class _Artifacts:
    """The artifacts of one run: each is made once, and changed in place from then on.

    Attributes:
        shown: by key, the artifact and what it shows.
    """

    def __init__(self, client: SyncPrefectClient, run: UUID) -> None:
        self._client, self._run = client, run
        self.shown: dict[str, tuple[str, dict[str, Any]]] = {}

    def put(self, key: str, kind: str, data: Any, description: str, **more: Any) -> None:
        """Have the server show this; nothing is sent where it does already.

        Not by the client's own `create_artifact` and `update_artifact`: they also send an event
        with all the data, of which the server would keep every version for a week.
        """
        new = {"data": data, "description": description, **more}
        artifact, old = self.shown.get(key, (None, None))
        if artifact is None:
            fields = new | {"key": key, "type": kind, "flow_run_id": str(self._run)}
            artifact = self._client.request("POST", "/artifacts/", json=fields).json()["id"]
        elif new != old:
            self._client.request("PATCH", "/artifacts/{id}", json=new, path_params={"id": artifact})
        self.shown[key] = artifact, new


def leave_report(report: RunReport, plan: RunPlan, storage: Storage, progress: RunProgress) -> None:
    """Put the report for people beside the dataset and into the dashboard."""
    path = report_path(report, ".html")
    where = f"{report.output}/{path}"
    parts = sorted([*plan.earlier, *report.parts], key=lambda part: part.part)
    try:
        listed = report.merged if plan.spec.two_phases else parts
        lengths = sample_lengths(storage, listed)
        page = ReportPage(make_figures(report, plan.earlier, plan.spec, lengths), plan.spec)
        storage.put(path, page.html().encode())
        progress.page = where
        create_markdown_artifact(page.markdown, key=REPORT, description=page.headline)
    except Exception as error:  # noqa: BLE001  the dataset is what it is without it
        get_run_logger().warning("There is no report: %s: %s", type(error).__name__, error)


def name_the_failure(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Prefect's hook: lists of runs show names and no reasons, so the reason goes into the name."""
    reason = (state.message or "").removeprefix("Flow run encountered an exception: ")
    # Of long paths the end: what is in the name's first letters is what people see.
    name = _FOLDERS.sub("…/", visible(f"{flow_run.name}: {reason}"))
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name[:_MOST_NAME])


class _ReasonsOnly(logging.Filter):
    """Leaves out of a run's log what says nothing: thousands of tasks that went well, and the
    traceback of an error whose message says what is wrong and what to do.
    """

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
