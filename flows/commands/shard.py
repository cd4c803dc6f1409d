"""`shardmill shard`: the main job, with its progress in the terminal."""

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.console.consoles import err, out
from flows.console.exit_codes import EXIT_FAILED, EXIT_TERMINATED
from flows.console.output_options import DEFAULT_OUTPUT, OutputOptions
from flows.console.quiet import quiet_prefect
from flows.stops import Stopped
from flows.terminal.visible import counted, visible
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.reading import read_manifest
from tasks.core.config import ShardConfig
from tasks.core.linux import require_linux
from tasks.core.reporting.report import RunReport
from tasks.core.storage import open_storage

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from tasks.core.reporting.progress import RunProgress


def shard(
    config: Annotated[ShardConfig, Parameter(name="*")],
    *,
    dry_run: bool = False,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Tokenize files of text, on disk, behind URLs or of the Hub, into MDS shards with a holdout.

    Run the same command again after any stop: it goes on where it was, to the same bytes.

    Parameters
    ----------
    dry_run
        Tell what would be done, and do nothing.
    config_file
        YAML file with any of these options; what the command line says goes first.
    """
    if dry_run:
        return _dry_run(config, printing)
    return run_shard(config, printing)


def _dry_run(config: ShardConfig, printing: OutputOptions) -> int:
    from flows.terminal.dry_run import look, show_dry_run

    with printing.applied():
        found = look(config)
        printing.result(found.facts())
        show_dry_run(found, out, all_files=printing.verbose)
    return 0


def run_shard(config: ShardConfig, printing: OutputOptions = DEFAULT_OUTPUT) -> int:
    """Run the flow in this process, with its progress in the terminal; returns the exit code."""
    require_linux()
    with printing.applied() as listen:
        ended = _run(config, listen)
        printing.result(ended.facts())
    if ended.cancelled:
        err.print("shardmill: cancelled in Prefect. Run the same command again to go on.")
        return EXIT_TERMINATED
    if ended.report is not None and ended.report.failed:
        from flows.terminal.run_progress import show_failures

        if printing.quiet:
            show_failures(ended.report, err)
        err.print(
            f"{len(ended.report.failed)} of {counted(ended.report.files, 'part')} failed; the "
            "others are kept. Run the same command again to do only what is missing.",
            soft_wrap=True,
        )
        return EXIT_FAILED
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ended:
    """How a run ended, where it did not end with an error.

    Attributes:
        report: None where nothing was to be done.
        manifest: None where parts failed.
    """

    output: str
    cancelled: bool
    report: RunReport | None
    manifest: Manifest | None

    def facts(self) -> dict[str, Any]:
        """What is told as JSON."""
        dataset = None
        if self.manifest is not None:
            dataset = {
                "parts": len(self.manifest.parts),
                "tokens": self.manifest.tokens,
                "samples": {name: each.samples for name, each in self.manifest.splits.items()},
            }
        return {
            "output": self.output,
            "published": self.manifest is not None,
            "cancelled": self.cancelled,
            "dataset": dataset,
            "report": None if self.report is None else self.report.model_dump(mode="json"),
        }


def _run(config: ShardConfig, listen: Callable[[], None]) -> _Ended:
    from tasks.core.planning.sources import look_into_sources, shortened
    from tasks.core.reporting.progress import watch

    _, wrong = look_into_sources(config)  # a slip of the pen is told before Prefect is loaded
    if wrong:
        err.print(f"{counted(len(wrong), 'file')} will fail, the others are done:")
        for words in shortened(wrong):
            err.print(f"  {visible(words)}", markup=False, soft_wrap=True)
    with watch() as progress:
        state = _run_flow(config, progress, listen)
    storage = open_storage(config.output)
    report, manifest = progress.report, None
    cancelled = state is not None and (state.is_cancelled() or state.is_cancelling())
    if cancelled and progress.stopped_by is not None:
        raise Stopped(progress.stopped_by)
    if not cancelled:
        from flows.terminal.run_progress import show_published, show_report

        if report is not None:
            show_report(report, out, page=progress.page)
        if report is None or not report.failed:
            if state is not None:
                state.result()
            manifest = read_manifest(storage)
            show_published(manifest, str(storage), out)
    return _Ended(output=str(storage), cancelled=cancelled, report=report, manifest=manifest)


def _load_ahead() -> None:
    """Load what a run needs when the API is ready, and at its end, while the API gets ready."""
    import fastapi.encoders  # noqa: F401
    import prefect.flow_engine
    import prefect.task_engine  # noqa: F401

    from flows.dashboard.drawing import load_drawing

    load_drawing()


def _run_flow(
    config: ShardConfig, progress: "RunProgress", listen: Callable[[], None]
) -> "State[Any] | None":
    """Run the flow to its end; None where Prefect's server went away before it was told of that."""
    quiet_prefect()
    gc.disable()  # what is loaded stays: looking through it again and again takes a seventh
    from flows.prefect_api.connection import PrefectApi, UnreachableError

    with PrefectApi() as api:  # it gets ready in a process of its own, from here on
        from flows.preparation import prepared_ahead
        from flows.shard_dataset import shard_dataset
        from flows.terminal.run_progress import shown

        gc.freeze()
        gc.enable()
        listen()
        with shown(progress, err), prepared_ahead(config, progress):
            threading.Thread(target=_load_ahead, daemon=True).start()
            try:
                with api.connected(progress):
                    return shard_dataset(config, return_state=True)
            except UnreachableError:
                if progress.report is None:
                    raise
                err.print(
                    f"shardmill: the Prefect server at {api.url} went away; its pages do not show "
                    "how the run ended.",
                    soft_wrap=True,
                )
                return None
