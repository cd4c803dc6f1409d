"""Questions to Prefect's server whose answer may as well come the next time."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)

ANSWER_SECONDS = 5.0  # for clients that are made meanwhile: a server that hangs holds nobody up


@contextmanager
def asked_once() -> Iterator[None]:
    """Ask once and go on where there is no answer: Prefect's client asks for a minute."""
    settings = {PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: ANSWER_SECONDS}
    with temporary_settings(settings), suppress(httpx.HTTPError):
        yield
