"""A flow run in the process of a command: Prefect's API, progress, result and exit code."""

import os
from contextlib import ExitStack, nullcontext
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flows.commands.options import OutputOptions
from flows.prefect_api.own_server import OwnServer
from flows.stops import stops_held
from flows.terminal.printing import attach_handlers, counted, err, out, print_problem, say
from flows.watched import Config, OutputConfig, Plan, watch
from streaming_ext.base.errors import (
    PartsFailedError,
    StoppedError,
    UnreachableError,
    UsageError,
    one_line,
)
from streaming_ext.format.reading import read_manifest
from streaming_ext.store import Storage, open_storage
from tasks.core.derive.export_format import is_export, read_export
from tasks.core.linux import require_linux
from tasks.core.reporting.progress import RunProgress

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State


def run_build(plan: Plan[Config], config: Config, flow: str, printing: OutputOptions) -> None:
    """Run a flow that makes an output.

    Args:
        plan: a function that plans the build, called before Prefect is loaded.
        config: the configuration of the flow.
        flow: the name of the flow in `flows.datasets`.
        printing: the options of printing.

    Raises:
        PartsFailedError: some parts failed, which are printed; the other parts are kept.
        StoppedError: the run was cancelled in Prefect.
        UnreachableError: the configured server does not answer, and there is work to do.
        UsageError: a setting of Prefect is wrong.
    """
    from flows.terminal.run_progress import show_failures, show_report, shown

    require_linux()
    set_environment()
    with (
        watch() as run,
        shown((progress := run.progress).snapshot, err),
        # The process of the server imports Prefect while this one plans.
        nullcontext() if os.environ.get("PREFECT_API_URL") else OwnServer() as own,
    ):
        progress.listeners.append(partial(say, err))
        published = run.planned(plan, config, open_storage(config.output)).published
        with ExitStack() as stack:
            if own is not None:
                if not published:
                    stack.enter_context(run.holding(plan, config))
                own.serve()
                if run.pools is not None:  # begin while the server starts, which takes seconds
                    run.begin()
            progress.enter("starting")
            state = _run_flow(config, flow, progress, own, published=published)
    cancelled = state.is_cancelled() or state.is_cancelling()
    if cancelled and progress.stopped_by is not None:
        raise progress.stopped_by
    storage, report = open_storage(config.output), None if cancelled else progress.report
    if report is not None:
        show_report(report, out, page=progress.page)
    elif state.is_completed():
        say(out, state.message or "")
    failed = report.failed if report is not None else ()
    published = not cancelled and not failed
    if published and not state.is_completed():
        from flows.prefect_api.connection import outside_of_loops

        outside_of_loops(state.result)  # raises its error
    printing.result(
        {
            "output": str(storage),
            "published": published,
            "cancelled": cancelled,
            "report": None if report is None else report.model_dump(mode="json"),
            **(_show_output(storage) if published else {}),
        }
    )
    err.quiet = False  # even with --quiet, errors are printed
    if cancelled:
        raise StoppedError("cancelled in Prefect. Run the same command again to resume.")
    if report is not None and failed:
        if printing.quiet:
            show_failures(report, err)
        raise PartsFailedError(
            f"{len(failed)} of {counted(report.files, 'part')} failed; the others are kept. Run "
            "the same command again to make the missing ones."
        )


def _run_flow(
    config: OutputConfig,
    flow: str,
    progress: RunProgress,
    own: OwnServer | None,
    *,
    published: bool,
) -> "State":
    """Run a flow to its end, with the configured server or with the command's own."""
    load_prefect()
    from prefect.settings import get_current_settings
    from prefect.states import Completed

    from flows.prefect_api.connection import api_in_use, require_server

    try:
        require_server()
        with stops_held():
            run = getattr(import_module("flows.datasets"), flow)
        attach_handlers()
        if get_current_settings().api.url:  # a profile may name it
            run = run.with_options(on_running=[_show_address])
        with api_in_use(own, progress):
            state: State = run(config, return_state=True)
            return state
    except UnreachableError as error:
        if progress.report is not None:
            done = "the work is done, but Prefect does not show how the run ended"
        elif published:
            done = "nothing is left to do"
        else:
            raise
        print_problem(f"{done}. {error}")
        return Completed()


def _show_address(_flow: Any, run: Any, _state: Any) -> None:
    """Print the URL at which Prefect shows a run that begins."""
    from flows.prefect_api.connection import run_address

    say(err, f"Prefect shows this run at {run_address(run.id)}")


def load_prefect() -> None:
    """Import Prefect, after `set_environment`.

    Raises:
        UsageError: Prefect cannot read its settings.
    """
    try:
        with stops_held():
            import prefect.context  # noqa: F401
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        raise UsageError(f"Prefect cannot read its settings: {one_line(error)}") from error


def set_environment() -> None:
    """Keep Prefect's log off the terminal, where the progress bar is; its dashboard still has it.

    Also limit Prefect's retries, and bypass proxies for servers on this machine.
    """
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # With 3 retries, a server that is gone delays a run by 14 s per request, not by a minute.
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "3")
    # A proxy cannot reach a server on this machine.
    for name in ("NO_PROXY", "no_proxy"):
        hosts = dict.fromkeys([*os.environ.get(name, "").split(","), "127.0.0.1", "localhost"])
        os.environ[name] = ",".join(filter(None, hosts))


def _show_output(storage: Storage) -> dict[str, Any]:
    """Print the contents of the output, and return them as facts."""
    if is_export(storage):
        export = read_export(storage)
        splits = ", ".join(
            f"{name} {counted(split.documents, 'document')} of {counted(split.tokens, 'token')}"
            for name, split in sorted(export.splits.items())
        )
        say(out, f"{storage}: {export.identity.export} of {export.dataset}; {splits}")
        return {"export": export.model_dump(mode="json")}
    from flows.terminal.run_progress import show_published

    manifest = read_manifest(storage)
    show_published(manifest, str(storage), out)
    if manifest.spec.listed_near is not None:
        from tasks.core.check.inspect import source_losses

        for loss in source_losses(storage, manifest):
            if loss.left_out * 2 > loss.documents:
                say(out, f"{loss}: more than half. `shardmill inspect` shows groups of them.")
    samples = {name: split.samples for name, split in manifest.splits.items()}
    rows = manifest.row_counts.model_dump()
    return {
        "dataset": {
            "parts": len(manifest.parts),
            "tokens": manifest.tokens,
            "samples": samples,
            **rows,
        }
    }
