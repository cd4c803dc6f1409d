"""Signs of life of a flow run, for automations that look for dead ones.

Prefect's own thread for that sleeps through the end of the run, and the run waits for it: up to a
second, of a run that takes three.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context

from prefect.events import emit_event
from prefect.runtime import flow_run
from prefect.settings import get_current_settings

from tasks.running.prefect_settings import changed_settings

_EVENT = "prefect.flow-run.heartbeat"
_seconds: ContextVar[int | None] = ContextVar("heartbeat_seconds", default=None)


@contextmanager
def own_heartbeats() -> Iterator[None]:
    """Have flow runs of the block give their signs by `beating`, as often as Prefect's would."""
    token = _seconds.set(get_current_settings().flows.heartbeat_frequency)
    try:
        with changed_settings({"flows.heartbeat_frequency": None}):
            yield
    finally:
        _seconds.reset(token)


@contextmanager
def beating() -> Iterator[None]:
    """Give signs of life of the current flow run, where that is asked for, until the block ends."""
    seconds = _seconds.get()
    if seconds is None:
        yield
        return
    ended = threading.Event()
    resource = {
        "prefect.resource.id": f"prefect.flow-run.{flow_run.id}",
        "prefect.resource.name": str(flow_run.name),
    }

    def beat() -> None:
        while True:
            emit_event(event=_EVENT, resource=resource)
            if ended.wait(seconds):
                return

    # The thread talks to the API that this run talks to, and its events name the same flow.
    context = copy_context()
    threading.Thread(target=lambda: context.run(beat), daemon=True).start()
    try:
        yield
    finally:
        ended.set()
