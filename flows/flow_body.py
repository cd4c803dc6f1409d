"""What all flows that make an output do alike around it: head, signs of life, report, end."""

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, Self, TypeVar

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Completed, Failed

from flows.prefect_api.cancellation import ending_without_a_worker, stopped_by_signals
from flows.prefect_api.connection import leaving_without_a_server
from flows.terminal.visible import visible
from streaming_ext.errors import StoppedError, StorageError, UsageError
from streaming_ext.storage.local_paths import local_path
from streaming_ext.storage.secrets import holds_secret, require_no_secret
from tasks.core.linux import require_linux
from tasks.core.reporting.progress import watched
from tasks.core.reporting.report import (
    FailedFile,
    PartTimes,
    RunReport,
    installed_versions,
    save_report,
)
from tasks.core.storage import Storage


class HasOutput(Protocol):
    """A configuration, as far as all of these flows take of it."""

    @property
    def output(self) -> str: ...
    def model_copy(self, *, update: dict[str, Any]) -> Self: ...


Config = TypeVar("Config", bound=HasOutput)


def run_name(words: str) -> str:
    """The name of a flow run, by its output."""
    given = flow_run.parameters
    output = given["output"] or given["config"].output
    return f"{words}: refused" if holds_secret(output) else visible(f"{words} {output}")


def run_body(config: Config, output: str | None, make: Callable[[Config], State]) -> State:
    """Do the work of a flow run that shows signs of life, and may be stopped at any moment.

    Args:
        config: of the run.
        output: in place of the one in `config`, for a deployment that is run on several.
        make: does it; returns how the flow run ended.
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
            return make(config)
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


@dataclass(frozen=True, slots=True)
class Begun:
    """When the work of a run began."""

    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.monotonic)

    def report(
        self,
        *,
        parts: Sequence[object],
        todo: Sequence[object],
        done: Sequence[PartTimes],
        failed: Sequence[FailedFile],
        **more: Any,
    ) -> RunReport:
        """What became of `todo` among all `parts`; `more` are further fields of the report."""
        sums = {
            name: sum(getattr(times, name) for times in done)
            for name in ("text_bytes", "tokens", "shard_bytes")
        }
        fields = sums | {"engine": None} | more
        return RunReport(
            run=str(flow_run.id),
            began=self.at,
            seconds=time.monotonic() - self.clock,
            host=platform.node(),
            cores=os.cpu_count(),
            versions=installed_versions(),
            files=len(parts),
            files_skipped=len(parts) - len(todo),
            files_done=len(done),
            failed=tuple(failed),
            published=not failed,
            parts=tuple(sorted(done, key=lambda times: times.part)),
            **fields,
        )


def leave_record(report: RunReport, storage: Storage) -> None:
    """Put a report beside the output; that is what it is without it, as on a disk that is full."""
    try:
        save_report(report, storage)
    except StorageError as error:
        get_run_logger().warning("The record of this run is missing, all else is there: %s", error)


def outcome_of(report: RunReport) -> State:
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
