"""Questions to Prefect's server whose answer may as well come the next time."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings


@contextmanager
def asked_once() -> Iterator[None]:
    """Ask once and go on where there is no answer: Prefect's client asks for a minute."""
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), suppress(httpx.HTTPError):
        yield
