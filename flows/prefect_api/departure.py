"""The end of a deployed run whose server is gone: the process does not wait for it for ever.

What Prefect's threads hold for the server they try to send at the interpreter's exit, for hours.
The dataset needs none of it.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.runtime import deployment
from prefect.settings import get_current_settings

from flows.console.consoles import tell
from flows.prefect_api.connection import answers
from flows.stops import leave

GONE_SECONDS = 60.0
_LOOK_SECONDS = 2.0
EXIT_UNTOLD = 1  # the worker that started the process tells the server, once there is one


@contextmanager
def leaving_without_a_server() -> Iterator[None]:
    """After the block, which is all of a deployed run's work, end where the server is gone."""
    try:
        yield
    finally:
        url = get_current_settings().api.url
        if deployment.id and url is not None:
            leave_if_gone(url)


def leave_if_gone(url: str) -> None:
    """End this process when a server has not answered for a minute; asks it from a thread."""

    def watch() -> None:
        heard = time.monotonic()
        while time.monotonic() - heard < GONE_SECONDS:
            if answers(url, seconds=_LOOK_SECONDS):
                heard = time.monotonic()
            time.sleep(_LOOK_SECONDS)
        tell(f"the Prefect server at {url} went away; its pages do not show how the run ended.")
        leave(EXIT_UNTOLD)

    threading.Thread(target=watch, name="shardmill-departure", daemon=True).start()
