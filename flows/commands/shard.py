"""`shardmill shard`: the main job, with its progress in the terminal."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.console.consoles import err, out
from flows.console.exit_codes import EXIT_FAILED, EXIT_TERMINATED
from flows.console.output_options import DEFAULT_OUTPUT, OutputOptions
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
        return dry_run_of(config, printing)
    return run_shard(config, printing)


def dry_run_of(config: ShardConfig, printing: OutputOptions) -> int:
    """Tell what a run would do, and do nothing; returns the exit code."""
    from flows.terminal.dry_run import look, show_dry_run

    with printing.applied():
        found = look(config)
        printing.result(found.facts())
        show_dry_run(found, out, all_files=printing.verbose)
    return 0


def run_shard(
    config: ShardConfig,
    printing: OutputOptions = DEFAULT_OUTPUT,
    load_flow: "Callable[[ShardConfig], Callable[[], State]] | None" = None,
) -> int:
    """Run a flow in this process, with its progress in the terminal; returns the exit code.

    Args:
        config: what it makes.
        printing: what is told.
        load_flow: imports it; returns what runs it. That is `shard-dataset` unless given.
    """
    require_linux()
    with printing.applied() as listen:
        ended = _run(config, listen, load_flow or _shard_dataset)
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


def _shard_dataset(config: ShardConfig) -> "Callable[[], State]":
    from flows.shard_dataset import shard_dataset

    return lambda: shard_dataset(config, return_state=True)


def _run(
    config: ShardConfig,
    listen: Callable[[], None],
    load_flow: "Callable[[ShardConfig], Callable[[], State]]",
) -> _Ended:
    from flows.running import run_flow
    from tasks.core.planning.sources import look_into_sources, shortened
    from tasks.core.reporting.progress import watch

    _, wrong = look_into_sources(config)  # a slip of the pen is told before Prefect is loaded
    if wrong:
        err.print(f"{counted(len(wrong), 'file')} may hold no such text:")
        for words in shortened(wrong):
            err.print(f"  {visible(words)}", markup=False, soft_wrap=True)

    def is_whole() -> bool:
        from flows.terminal.dry_run import look

        return look(config).plan.published

    with watch() as progress:
        state = run_flow(lambda: load_flow(config), progress, listen, is_whole)
    storage = open_storage(config.output)
    report, manifest = progress.report, None
    cancelled = state is not None and (state.is_cancelled() or state.is_cancelling())
    if cancelled and progress.stopped_by is not None:
        raise Stopped(progress.stopped_by)
    if not cancelled:
        from flows.terminal.run_progress import show_published, show_report

        if report is not None:
            show_report(report, out, page=progress.page)
        elif state is not None and state.is_completed():
            out.print(visible(state.message or ""), markup=False, soft_wrap=True)
        if report is None or not report.failed:
            if state is not None:
                state.result()
            manifest = read_manifest(storage)
            show_published(manifest, str(storage), out)
    return _Ended(output=str(storage), cancelled=cancelled, report=report, manifest=manifest)
