"""Questions to Prefect's server whose answer may as well come the next time."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx

from tasks.running.prefect_settings import changed_settings

ANSWER_SECONDS = 5.0  # for clients that are made meanwhile: a server that hangs holds nobody up


@contextmanager
def asked_once() -> Iterator[None]:
    """Ask once and go on where there is no answer: Prefect's client asks for a minute."""
    settings = {"client.max_retries": 0, "api.request_timeout": ANSWER_SECONDS}
    with changed_settings(settings), suppress(httpx.HTTPError):
        yield
