"""Running a flow in the process of a command: its progress, what came of it, the exit code."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from flows.commands.options import OutputOptions
from flows.stops import EXIT_FAILED, EXIT_TERMINATED, Stopped
from flows.terminal.consoles import err, out
from flows.terminal.visible import counted, say
from streaming_ext.format.reading import read_manifest
from streaming_ext.store import Storage, open_storage
from tasks.core.linux import require_linux

Show = Callable[[Storage], dict[str, Any]]


def run_build(
    config: Any,
    flow: str,
    is_whole: Callable[[], bool],
    show: Show,
    *,
    printing: OutputOptions,
    listen: Callable[[], None],
) -> int:
    """Run a flow that makes an output; returns the exit code.

    Args:
        config: of the flow.
        flow: its name in `flows.datasets`.
        is_whole: tells whether nothing is left to do.
        show: prints what the output is now; returns it as facts.
        printing: what is told.
        listen: called once Prefect is loaded.
    """
    from flows.running import run_flow
    from flows.terminal.run_progress import show_failures, show_report
    from tasks.core.reporting.progress import watch

    require_linux()
    with watch() as progress:

        def loaded() -> Callable[[], Any]:
            made = getattr(import_module("flows.datasets"), flow)
            return lambda: made(config, return_state=True)

        state = run_flow(loaded, progress, listen, is_whole)
    cancelled = state is not None and (state.is_cancelled() or state.is_cancelling())
    if cancelled and progress.stopped_by is not None:
        raise Stopped(progress.stopped_by)
    storage, report = open_storage(config.output), None if cancelled else progress.report
    facts: dict[str, Any] = {
        "output": str(storage),
        "published": False,
        "cancelled": cancelled,
        "report": None if report is None else report.model_dump(mode="json"),
    }
    if report is not None:
        show_report(report, out, page=progress.page)
    elif state is not None and state.is_completed():
        say(out, state.message or "")
    failed = () if report is None else report.failed
    if not cancelled and not failed:
        if state is not None:
            state.result()
        facts |= {"published": True, **show(storage)}
    printing.result(facts)
    err.quiet = False  # what follows are errors
    if cancelled:
        say(err, "shardmill: cancelled in Prefect. Run the same command again to go on.")
        return EXIT_TERMINATED
    if report is not None and failed:
        if printing.quiet:
            show_failures(report, err)
        say(
            err,
            f"{len(failed)} of {counted(report.files, 'part')} failed; the others are kept. Run "
            "the same command again to do only what is missing.",
        )
        return EXIT_FAILED
    return 0


def show_dataset(storage: Storage) -> dict[str, Any]:
    """Print what a dataset is now; returns it as facts."""
    from flows.terminal.run_progress import show_published

    manifest = read_manifest(storage)
    show_published(manifest, str(storage), out)
    samples = {name: split.samples for name, split in manifest.splits.items()}
    dataset = {"parts": len(manifest.parts), "tokens": manifest.tokens, "samples": samples}
    return {"dataset": dataset}
