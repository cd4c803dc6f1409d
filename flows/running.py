"""Running a flow in the process of a command, with its progress in the terminal."""

import gc
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flows.console.consoles import err, tell
from flows.console.quiet import quiet_prefect
from flows.stops import stops_held

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from tasks.core.reporting.progress import RunProgress


class Loaded(NamedTuple):
    """A flow that may run.

    Attributes:
        run: runs it.
        ahead: what is prepared while Prefect's API gets ready; held until the run is over.
    """

    run: "Callable[[], State]"
    ahead: AbstractContextManager[None] = nullcontext()


def run_flow(
    load: Callable[[], Loaded], progress: "RunProgress", listen: Callable[[], None]
) -> "State | None":
    """Run a flow to its end; None where Prefect's server went away before it was told of that.

    Args:
        load: imports it; called once Prefect is loaded, while its API gets ready.
        progress: of the run.
        listen: called once Prefect is loaded.

    Raises:
        UsageError: a setting of Prefect is wrong.
    """
    quiet_prefect()
    gc.disable()  # what is loaded stays: looking through it again and again takes a seventh
    with stops_held():
        from flows.prefect_api.loading import load_prefect

        load_prefect()
        from flows.prefect_api.connection import PrefectApi, UnreachableError
        from flows.prefect_api.server_url import shown_url
    warn_of_compiling()

    with PrefectApi() as api:  # it gets ready in a process of its own, from here on
        with stops_held():
            from flows.terminal.run_progress import shown

            flow = load()
        gc.freeze()
        gc.enable()
        listen()
        with shown(progress, err), flow.ahead:
            threading.Thread(target=_load_ahead, daemon=True).start()
            try:
                with api.connected(progress):
                    return flow.run()
            except UnreachableError:
                if progress.report is None:
                    raise
                err.print(
                    f"shardmill: the Prefect server at {shown_url(api.url)} went away; its pages "
                    "do not show how the run ended.",
                    soft_wrap=True,
                )
                return None


def warn_of_compiling() -> None:
    """Say why each start is slow where compiled modules are neither there nor kept."""
    import prefect

    if sys.dont_write_bytecode and not Path(cache_from_source(prefect.__file__)).is_file():
        tell(
            "warning: PYTHONDONTWRITEBYTECODE is set and the packages are not compiled, so each "
            "process takes three times as long to start. Unset it, or compile them once: "
            f"python -m compileall {Path(prefect.__file__).parents[1]}"
        )


def _load_ahead() -> None:
    """Load what a run needs when the API is ready, while the API gets ready."""
    import fastapi.encoders  # noqa: F401
    import prefect.flow_engine
    import prefect.task_engine  # noqa: F401
