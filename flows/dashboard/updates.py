"""Prefect's dashboard as the place to watch a run: its progress, parts, hosts and report.

A run has four artifacts. Three of them are changed in place while it runs, every few seconds and
only if there is something new; the report is made in the end. An error here is logged once and
does not affect the run.
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
METADATA = "snapshot"  # of it: the counters, for `shardmill submit`
SNAPSHOT = TypeAdapter(Snapshot)
REPORT_AT = "; report: "  # at the end of the message of a run, before the path

Rows = list[dict[str, str]]
Result = PartTimes | FailedFile

# Together some hundred rows: more of them slow a browser down, and nobody reads them.
_MOST_ROWS = 60  # of parts in hand, of failed ones, and of the latest
_MOST_LETTERS = 100
_MOST_REASON = 300
FIRST_SECONDS = 5.0  # a run that ends within this has only the report
UPDATE_SECONDS = 5.0
_END_SECONDS = 3.0  # for the last update: a slow server must not hold up the run
_MOST_NAME = 300  # characters
_FOLDERS = re.compile(r"(?<![^\s/])(?:/|([\w+.-]+://[^/\s]+/))(?:[^/\s]+/)+(?=[^/\s]+/[^/\s]+)")


def parts_table(working: Sequence[WorkingFile], results: Sequence[Result]) -> Rows:
    """The parts in hand, the failed and the latest that are done, in that order; each once."""
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
    """One line about the table of parts."""
    failed = sum(isinstance(result, FailedFile) for result in results)
    done = len(results) - failed
    latest = f"; the latest {_MOST_ROWS} of each" if done > _MOST_ROWS else ""
    return f"{len(working):,} in hand, {failed:,} failed, {done:,} done{latest}"


def hosts_table(working: Sequence[WorkingFile], results: Sequence[Result]) -> Rows:
    """The work of each host; its rate is that since its first part."""
    hosts = {file.host for file in working} | {result.host for result in results}
    return [_host(host, working, results) for host in sorted(hosts - {""})]


def describe_hosts(rows: Rows) -> str:
    """One line about the table of hosts."""
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
    # The file and its folder: the end of a path tells parts apart.
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

    def keep(self) -> None:
        """Update every few seconds until the end, and once more in the end."""
        if self.ended.wait(FIRST_SECONDS):
            return
        is_last = warned = False
        while True:
            try:
                with get_client(sync_client=True) as client:
                    self._update(client)
            except Exception as error:  # noqa: BLE001  the next update tries again
                self._shown.clear()  # somebody may have deleted them
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
        # If the run is killed, this line stays.
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
        """Show this content, unless the artifact shows it already."""
        new = {"data": data, "description": description, **more}
        artifact, old = self._shown.get(key, (None, None))
        if artifact is None:
            fields = new | {"key": key, "type": kind, "flow_run_id": str(self._run)}
            artifact = client.request("POST", "/artifacts/", json=fields).json()["id"]
        elif new != old:
            client.request("PATCH", "/artifacts/{id}", json=new, path_params={"id": artifact})
        self._shown[key] = artifact, new


def name_the_failure(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Put the reason of a failure into the name of the run, as lists of runs show only names."""
    name = name_with_reason(str(flow_run.name), state.message or "")
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name)


def name_with_reason(name: str, message: str) -> str:
    """The name of a run that failed, on one line; paths are without folders, as people see the
    first letters of a name.
    """
    reason = message.removeprefix("Flow run encountered an exception: ")
    reason = " ".join((reason.rpartition(REPORT_AT)[0] or reason).split())
    return _FOLDERS.sub(r"\1…/", visible(f"{name}: {reason}"))[:_MOST_NAME]


class _ReasonsOnly(logging.Filter):
    """Drops messages of task runs that succeed, and tracebacks of errors with a clear message."""

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
