"""Prefect's dashboard as the place to watch a run: how far it is, its parts, its hosts, its report.

A run has four artifacts. Three are changed in place while it goes on, seldom and only where there
is something new; the report is made at its end. None of it can harm the work: what fails here is
told once in the log.
"""

import json
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import Pause, PrefectHTTPStatusError
from prefect.flows import Flow
from prefect.runtime import flow_run

from flows.dashboard.followed import PROGRESS, to_metadata
from flows.dashboard.report_page import ReportPage
from flows.dashboard.tables import describe_hosts, describe_parts, hosts_table, parts_table
from flows.prefect_api.suspension import is_suspended
from flows.terminal.visible import count_text, duration_text, visible
from streaming_ext.errors import ShardmillError, StoppedError
from tasks.core.planning.run_plan import RunPlan
from tasks.core.reporting.figures import make_figures
from tasks.core.reporting.lengths import sample_lengths
from tasks.core.reporting.progress import RunProgress, Snapshot
from tasks.core.reporting.report import PartCounts, RunReport, report_path
from tasks.core.storage import Storage
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
        try:
            artifacts.put(
                PROGRESS,
                "progress",
                done,
                _describe(now),
                metadata=to_metadata(now),
                as_of=_as_of(now, datetime.now(UTC)),
            )
            if working or results:
                parts = json.dumps(parts_table(working, results))
                artifacts.put(PARTS, "table", parts, describe_parts(working, results))
                hosts = hosts_table(working, results)
                artifacts.put(HOSTS, "table", json.dumps(hosts), describe_hosts(hosts))
        except Exception as error:  # noqa: BLE001  the next update tries again
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            self._logger.warning("The dashboard is behind: %s: %s", type(error).__name__, error)


def _as_of(now: Snapshot, at: datetime) -> str:
    """When it was so, unless that is the end: nobody takes it back where a run is killed."""
    return "" if now.stopped else f", at {at:%H:%M} UTC"


def _describe(now: Snapshot) -> str:
    """What a card has room for, the most wanted first."""
    left = now.seconds_left
    ended = now.stopped or now.parts_done + now.parts_failed == now.parts_total
    if ended or not now.parts_total:
        first = now.phase
    else:
        first = "time left unknown" if left is None else f"{duration_text(left)} left"
    failed = f", {now.parts_failed:,} failed" if now.parts_failed else ""
    return (
        f"{first}: {now.parts_done:,}/{now.parts_total:,} parts{failed}, "
        f"{now.bytes_per_second / 1e6:.1f} MB/s, {count_text(now.tokens)} tokens"
    )


class _Artifacts:
    """The artifacts of one run: each is made once, and changed in place from then on."""

    def __init__(self, client: SyncPrefectClient, run: UUID) -> None:
        self._client = client
        self._run = run
        self._known: dict[str, tuple[UUID, tuple[Any, str]]] = {}

    def put(
        self,
        key: str,
        kind: str,
        data: Any,
        description: str,
        *,
        metadata: dict[str, str] | None = None,
        as_of: str = "",
    ) -> None:
        """Make sure that the server shows this; nothing is sent where it does already.

        Args:
            key: of the artifact.
            kind: of the artifact.
            data: of that kind.
            description: a line.
            metadata: for programs.
            as_of: ends the line, and is nothing new by itself.
        """
        new = (data, description)
        description += as_of
        known = self._known.get(key)
        if known is not None and known[1] == new:
            return
        if known is not None:
            try:
                self._change(known[0], data, description, metadata)
            except PrefectHTTPStatusError as error:
                if error.response.status_code != httpx.codes.NOT_FOUND:
                    raise
                known = None  # somebody deleted it
            else:
                self._known[key] = (known[0], new)
        if known is None:
            self._known[key] = (self._make(key, kind, data, description, metadata), new)

    # Not the client's own `create_artifact` and `update_artifact`: they also send an event that
    # holds all the data (the server would keep every version of a table for a week), by a thread
    # that stays in this process for good.

    def _make(
        self, key: str, kind: str, data: Any, description: str, metadata: dict[str, str] | None
    ) -> UUID:
        made = self._client.request(
            "POST",
            "/artifacts/",
            json={
                "key": key, "type": kind, "data": data, "description": description,
                "metadata_": metadata, "flow_run_id": str(self._run),
            },
        )  # fmt: skip
        return UUID(made.json()["id"])

    def _change(
        self, artifact: UUID, data: Any, description: str, metadata: dict[str, str] | None
    ) -> None:
        self._client.request(
            "PATCH",
            "/artifacts/{id}",
            json={"data": data, "description": description, "metadata_": metadata},
            path_params={"id": artifact},
        )


def leave_report(report: RunReport, plan: RunPlan, storage: Storage, progress: RunProgress) -> None:
    """Put the report for people beside the dataset and into the dashboard."""
    path = report_path(report, ".html")
    where = f"{report.output}/{path}"
    parts = sorted([*plan.earlier, *report.parts], key=lambda part: part.part)
    try:
        lengths = sample_lengths(storage, listed_parts(report, plan, parts))
        page = ReportPage(make_figures(report, plan.earlier, plan.spec, lengths), plan.spec)
        storage.put(path, page.html().encode())
        progress.page = where
        create_markdown_artifact(page.markdown(where), key=REPORT, description=page.headline())
    except Exception as error:  # noqa: BLE001  the dataset is what it is without it
        get_run_logger().warning("There is no report: %s: %s", type(error).__name__, error)


def listed_parts(report: RunReport, plan: RunPlan, parts: list[PartCounts]) -> Sequence[PartCounts]:
    """The parts whose documents are listed: of two stages those of this run's second one.

    Args:
        report: of the run.
        plan: of its first stage, or of the only one.
        parts: of that stage that are done.
    """
    return report.gathered if plan.spec.two_stages else parts


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
