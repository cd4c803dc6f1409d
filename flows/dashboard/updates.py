"""The artifacts of a run in Prefect's dashboard: progress, parts, hosts and report.

Three of the four artifacts are changed in place while the run goes on, every few seconds if there
is something new. The report is made at the end. An error here is logged once and does not affect
the run.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import Pause
from prefect.flows import Flow
from prefect.runtime import flow_run
from pydantic import TypeAdapter

from flows.prefect_api.cancellation import is_suspended
from flows.terminal.printing import count_text, counted, plain, shortened, visible
from flows.terminal.run_progress import describe
from streaming_ext.base.errors import InternalError, ShardmillError, StoppedError
from tasks.core.reporting.progress import RunProgress, Snapshot, WorkingFile
from tasks.core.reporting.report import FailedFile, PartTimes

PARTS, HOSTS = "shard-parts", "shard-hosts"
PROGRESS = "shard-progress"  # key of the artifact that shows the counters
METADATA = "snapshot"  # key of its metadata with the counters, for `shardmill submit`
SNAPSHOT = TypeAdapter(Snapshot)
REPORT_AT = "; report: "  # at the end of the message of a run, before the path

Rows = list[dict[str, str]]
Result = PartTimes | FailedFile

# Together a few hundred rows: more would slow down a browser, and nobody would read them.
_MOST_ROWS = 60  # of parts in progress, of failed parts, and of the latest parts
_MOST_LETTERS = 100
_MOST_REASON = 300
FIRST_SECONDS = 5.0  # a run that ends within this time has only the report
UPDATE_SECONDS = 5.0
_END_SECONDS = 3.0  # for the last update, so that a slow server does not hold up the run
_MOST_NAME = 300  # characters
_FOLDERS = re.compile(r"(?<![^\s/])(?:/|([\w+.-]+://[^/\s]+/))(?:[^/\s]+/)+(?=[^/\s]+/[^/\s]+)")


def parts_table(working: Sequence[WorkingFile], results: Sequence[Result]) -> Rows:
    """Return the rows of the parts in progress, then of failed parts, then of the latest done."""
    failed = [result for result in results if isinstance(result, FailedFile)]
    done = [result for result in results if isinstance(result, PartTimes)]
    now = time.monotonic()
    return [
        *(_working(file, now) for file in working[:_MOST_ROWS]),
        *(
            _row(part, f"failed: {part.step}", reason=plain(part.reason_alone)[:_MOST_REASON])
            for part in failed[: -_MOST_ROWS - 1 : -1]
        ),
        *(
            _row(part, "done", part.tokens, part.text_bytes, part.seconds)
            for part in done[: -_MOST_ROWS - 1 : -1]
        ),
    ]


def describe_parts(working: Sequence[WorkingFile], results: Sequence[Result]) -> str:
    """Describe the table of parts in one line."""
    failed = sum(isinstance(result, FailedFile) for result in results)
    done = len(results) - failed
    latest = f"; the latest {_MOST_ROWS} of each" if done > _MOST_ROWS else ""
    return f"{len(working):,} in hand, {failed:,} failed, {done:,} done{latest}"


def hosts_table(working: Sequence[WorkingFile], results: Sequence[Result]) -> Rows:
    """Return a row for each host; rates are averages since the host's first part."""
    hosts = {file.host for file in working} | {result.host for result in results}
    return [_host(host, working, results) for host in sorted(hosts - {""})]


def describe_hosts(rows: Rows) -> str:
    """Describe the table of hosts in one line."""
    rate = sum(float(row["MB/s"].replace(",", "") or 0) for row in rows)
    return f"{counted(len(rows), 'host')}, {rate:,.1f} MB/s"


def _host(host: str, working: Sequence[WorkingFile], results: Sequence[Result]) -> dict[str, str]:
    ended = [result for result in results if result.host == host]
    done = [part for part in ended if isinstance(part, PartTimes)]
    in_hand = [file for file in working if file.host == host]
    all_parts: list[PartTimes | WorkingFile] = [*done, *in_hand]
    now, clock = time.time(), time.monotonic()
    ages = [now - part.began_at for part in done if part.tokenized_at]
    seconds = max([*ages, *(clock - file.since for file in in_hand)], default=0.0)
    text = sum(part.text_bytes for part in all_parts)
    return {
        "host": plain(host),
        "parts done": f"{len(done):,}",
        "failed": f"{len(ended) - len(done):,}",
        "in hand": f"{len(in_hand):,}",
        "tokens": count_text(sum(part.tokens for part in all_parts)),
        "MB/s": _rate(text, seconds),
    }


def _working(file: WorkingFile, now: float) -> dict[str, str]:
    is_text = file.step == "tokenize"
    state = "waiting" if is_text and not file.text_bytes else file.step
    text_bytes = file.text_bytes - file.first_bytes if is_text else 0
    return _row(file, state, file.tokens, text_bytes, now - file.since)


def _row(
    part: WorkingFile | Result,
    state: str,
    tokens: int = 0,
    text_bytes: int = 0,
    seconds: float = 0.0,
    *,
    reason: str = "",
) -> dict[str, str]:
    # The file and its folder, because the end of a path distinguishes parts.
    name = plain("/".join(part.source.split("/")[-2:]))
    return {
        "part": shortened(name, _MOST_LETTERS),
        "state": state,
        "tokens": count_text(tokens) if tokens else "",
        "MB/s": _rate(text_bytes, seconds),
        "host": plain(part.host),
        "seconds": f"{seconds:,.1f}" if seconds else "",
        "reason": reason,
    }


def _rate(num_bytes: int, seconds: float) -> str:
    return f"{num_bytes / 1e6 / seconds:,.1f}" if num_bytes and seconds > 0 else ""


@contextmanager
def dashboard(progress: RunProgress) -> Iterator[None]:
    """Keep the artifacts of the current flow run up to date until the block ends."""
    updates = Updates(progress, UUID(str(flow_run.id)), get_run_logger())
    # The thread must use the API of this run, which the context may set.
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
    """The updates of a run's artifacts.

    Each artifact is made once and then changed in place, with plain requests. The client's own
    `create_artifact` and `update_artifact` also send an event with all data, so the server would
    keep every version for a week.
    """

    def __init__(self, progress: RunProgress, run: UUID, logger: Any) -> None:
        self.ended = threading.Event()
        self._progress, self._run, self._logger = progress, run, logger
        self._shown: dict[str, tuple[str, dict[str, Any]]] = {}  # key -> id and content

    def keep(self) -> None:
        """Update every few seconds until the run ends, and once more at its end."""
        if self.ended.wait(FIRST_SECONDS):
            return
        is_last = warned = False
        while True:
            try:
                with get_client(sync_client=True) as client:
                    self._update(client)
            except Exception as error:  # noqa: BLE001  the next update tries again
                self._shown.clear()  # somebody may have deleted the artifacts
                if not warned:
                    kind = type(error).__name__
                    self._logger.warning("The dashboard is behind: %s: %s", kind, error)
                warned = True
            if is_last:
                return
            is_last = self.ended.wait(UPDATE_SECONDS)

    def _update(self, client: SyncPrefectClient) -> None:
        now = self._progress.snapshot()
        working, results = self._progress.files()
        total = now.source_bytes_total
        done = round(min(100 * now.source_bytes / total, 100), 1) if total else 0.0
        # If the run is killed, this line stays, so it needs a time.
        at = "" if now.stopped else f", at {datetime.now(UTC):%H:%M} UTC"
        counters = {METADATA: SNAPSHOT.dump_json(now).decode()}
        self._put(client, PROGRESS, "progress", done, describe(now) + at, metadata_=counters)
        if working or results:
            parts, hosts = parts_table(working, results), hosts_table(working, results)
            words = describe_parts(working, results)
            self._put(client, PARTS, "table", json.dumps(parts), words)
            self._put(client, HOSTS, "table", json.dumps(hosts), describe_hosts(hosts))

    def _put(
        self,
        client: SyncPrefectClient,
        key: str,
        kind: str,
        data: Any,
        description: str,
        **more: Any,
    ) -> None:
        """Make or change an artifact, unless it already shows this content."""
        new = {"data": data, "description": description, **more}
        artifact, old = self._shown.get(key, (None, None))
        if artifact is None:
            fields = new | {"key": key, "type": kind, "flow_run_id": str(self._run)}
            artifact = client.request("POST", "/artifacts/", json=fields).json()["id"]
        elif new != old:
            client.request("PATCH", "/artifacts/{id}", json=new, path_params={"id": artifact})
        self._shown[key] = artifact, new


def name_the_failure(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Put the reason of a failure into the name of the run, since lists of runs show only names."""
    name = name_with_reason(str(flow_run.name), state.message or "")
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name)


def name_with_reason(name: str, message: str) -> str:
    """Return the name of a failed run with the reason, on one line.

    Paths lose most of their folders, because lists show only the first letters of a name.
    """
    reason = message.removeprefix("Flow run encountered an exception: ")
    reason = " ".join((reason.rpartition(REPORT_AT)[0] or reason).split())
    return _FOLDERS.sub(r"\1…/", visible(f"{name}: {reason}"))[:_MOST_NAME]


class _ReasonsOnly(logging.Filter):
    """A filter that drops messages of successful task runs, and tracebacks of clear errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to keep a record."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, ShardmillError) and not isinstance(error, InternalError):
            record.exc_info = None
        ours = _OURS.fullmatch(str(getattr(record, "flow_name", "")))
        return not (ours and record.name == _TASK_RUNS and record.levelno <= logging.INFO)


_TASK_RUNS = "prefect.task_runs"
_OURS = re.compile(r"(shard|import|extend|export|copy|merge|subset|annotate)-(datasets?|partition)")
for _name in ("prefect.flow_runs", _TASK_RUNS):
    logging.getLogger(_name).addFilter(_ReasonsOnly())
