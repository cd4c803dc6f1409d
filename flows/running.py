"""Running a flow in the process of a command, with its progress in the terminal."""

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING

from flows.prefect_api.own_server import OwnServer
from flows.stops import stops_held
from flows.terminal.consoles import err, tell
from streaming_ext.base.errors import UsageError, one_line

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from tasks.core.reporting.progress import RunProgress


def run_flow(
    load: "Callable[[], Callable[[], State]]",
    progress: "RunProgress",
    listen: Callable[[], None],
    is_whole: Callable[[], bool],
) -> "State | None":
    """Run a flow to its end; None where Prefect's server is gone and nothing is left to do.

    Args:
        load: imports the flow, while Prefect's API gets ready; returns what runs it.
        progress: of the run.
        listen: called once Prefect is loaded.
        is_whole: tells whether nothing is left to do.

    Raises:
        UnreachableError: the configured server does not answer, and something is left to do.
        UsageError: a setting of Prefect is wrong.
    """
    quiet_prefect()
    # An own server starts while Prefect is imported here: both take seconds.
    with nullcontext() if os.environ.get("PREFECT_API_URL") else OwnServer() as own:
        load_prefect()
        from flows.prefect_api.connection import UnreachableError, api_in_use, require_server
        from flows.terminal.run_progress import shown

        try:
            require_server()
            with stops_held():
                run = load()
            listen()
            with shown(progress, err), api_in_use(own, progress):
                return run()
        except UnreachableError as error:
            if progress.report is not None:
                tell(f"the work is done, but Prefect does not show how the run ended. {error}")
            elif is_whole():
                tell(f"nothing is left to do. {error}")
            else:
                raise
            return None


def load_prefect() -> None:
    """Import Prefect.

    Raises:
        UsageError: a setting of Prefect is wrong, or a file of settings is none.
    """
    quiet_prefect()
    try:
        with stops_held():
            import prefect.context
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        raise UsageError(f"Prefect cannot read its settings: {one_line(error)}") from error
    if sys.dont_write_bytecode and not Path(cache_from_source(prefect.__file__)).is_file():
        tell(
            "warning: PYTHONDONTWRITEBYTECODE is set and the packages are not compiled, so each "
            "process takes three times as long to start. Unset it, or compile them once: "
            f"python -m compileall {Path(prefect.__file__).parents[1]}"
        )


def quiet_prefect() -> None:
    """Leave the terminal to the progress bar; Prefect's own log still goes to its dashboard."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # A server that is gone for good holds a run up for 14 s a question, not for a minute.
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "3")
