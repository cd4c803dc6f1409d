"""Running such a flow in the process of a command, with its progress and its end told."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from flows.console.consoles import err, out
from flows.console.exit_codes import EXIT_FAILED, EXIT_TERMINATED
from flows.stops import Stopped
from flows.terminal.visible import counted, visible

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from tasks.core.reporting.report import RunReport


def run_making(
    load: "Callable[[], Callable[[], State]]", listen: Callable[[], None], *, whole: bool
) -> "tuple[RunReport | None, bool]":
    """Run a flow; what was done, where anything was, and whether the output is whole now.

    Args:
        load: imports the flow, and returns what runs it.
        listen: called once Prefect is loaded.
        whole: whether nothing is left to do.

    Raises:
        Stopped: a signal ended it.
    """
    from tasks.core.reporting.progress import watch

    with watch() as progress:
        from flows.running import run_flow
        from flows.terminal.show_export import show_report

        state = run_flow(load, progress, listen, lambda: whole)
    cancelled = state is not None and (state.is_cancelled() or state.is_cancelling())
    if cancelled and progress.stopped_by is not None:
        raise Stopped(progress.stopped_by)
    if cancelled:
        return None, False
    report = progress.report
    if report is None and state is not None and state.is_completed():
        out.print(visible(state.message or ""), markup=False, soft_wrap=True)
    if report is not None:
        show_report(report, out)
        if report.failed:
            return report, False
    if state is not None:
        state.result()
    return report, True


def say_why(report: "RunReport | None", *, quiet: bool) -> int:
    """Tell why an output is not whole; returns the exit code."""
    if report is None:
        err.print("shardmill: cancelled in Prefect. Run the same command again to go on.")
        return EXIT_TERMINATED
    if quiet:
        from flows.terminal.run_progress import show_failures

        show_failures(report, err)
    err.print(
        f"{len(report.failed)} of {counted(report.files, 'part')} failed; the others are kept. "
        "Run the same command again to do only what is missing.",
        soft_wrap=True,
    )
    return EXIT_FAILED
