"""The URL of a configured Prefect server: what it must be, and what stands behind it."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import httpx

from streaming_ext.errors import ShardmillError, UsageError, one_line

SUCH_AS: Final = "PREFECT_API_URL is to be such as http://127.0.0.1:4200/api"
_CREDENTIALS: Final = " Set PREFECT_API_AUTH_STRING, or PREFECT_API_KEY, to what it wants."
UNKNOWN_USER: Final = {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}
_BY_PROXY: Final = "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY"


def require_url(url: str) -> None:
    """Refuse what is no URL of an API.

    Raises:
        UsageError: it is none.
    """
    try:
        parts = urlsplit(url)
        whole = parts.scheme in {"http", "https"} and bool(parts.hostname)
        reason = "" if whole and parts.port != 0 else "no http:// or https:// URL"
        if re.search(r"[\s\x00-\x1f]", url):
            reason = "white space in it"
    except ValueError as error:
        reason = one_line(error)
    if reason:
        raise UsageError(f"PREFECT_API_URL: {shown_url(url)!r}: {reason}. {SUCH_AS}.")


def is_loopback(url: str) -> bool:
    """Whether a URL is of this machine itself, which no proxy can reach."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host.startswith("127.")


def ask(url: str, *, seconds: float, headers: Mapping[str, str] | None = None) -> httpx.Response:
    """What an HTTP server answers, redirects followed.

    Raises:
        httpx.TransportError: nothing, in this time.
        UsageError: a proxy that the environment names cannot be used.
    """
    own = is_loopback(url)
    with proxies_explained():
        return httpx.get(
            url,
            timeout=seconds,
            headers=dict(headers or {}),
            follow_redirects=True,
            trust_env=not own,
            verify=not url.startswith("http:"),
        )


@contextmanager
def proxies_explained() -> Iterator[None]:
    """Tell that HTTP clients made in the block take none of the proxies that are named to them."""
    try:
        yield
    except (ImportError, httpx.InvalidURL, ValueError) as error:
        if isinstance(error, ValueError) and type(error) is not ValueError:
            raise  # of something else
        raise UsageError(
            f"The proxy that {_BY_PROXY} names cannot be used to reach the Prefect server: "
            f"{one_line(error)}. Name one as http://HOST:PORT, or add the server to NO_PROXY "
            "and unset it."
        ) from error


def is_prefect(answer: httpx.Response) -> bool:
    """Whether this is how Prefect answers to the question whether it is well."""
    return answer.is_success and answer.text.strip() == "true"


def require_prefect(url: str, answer: httpx.Response, *, seconds: float) -> None:
    """Refuse a server that is none of Prefect's.

    Args:
        url: of the API.
        answer: to `/health` below it.
        seconds: for one more question.

    Raises:
        UsageError: it is none, or its API is below `/api`.
        ShardmillError: it answers that it cannot answer.
    """
    if is_prefect(answer) or answer.status_code in UNKNOWN_USER:  # Prefect's client has more
        return
    shown = shown_url(url)
    if may_pass(answer):
        raise ShardmillError(refused(answer, url))
    below = f"{url.rstrip('/')}/api"
    try:
        found = is_prefect(ask(f"{below}/health", seconds=seconds))
    except httpx.TransportError:
        found = False
    if found:
        raise UsageError(
            f"The API of the Prefect server at {shown} is at {shown_url(below)}: set "
            f"PREFECT_API_URL={shown_url(below)}"
        )
    raise UsageError(
        f"What answers at {shown} is no API of Prefect ({answer.status_code} "
        f"{answer.reason_phrase} for {shown}/health). {SUCH_AS}."
    )


def may_pass(answer: httpx.Response) -> bool:
    """Whether a server that refused may answer otherwise a moment later."""
    passing = {httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS}
    return answer.is_server_error or answer.status_code in passing


def refused(answer: httpx.Response, url: str) -> str:
    """What to tell of a server that refuses, and of what it wants where that is known."""
    wanted = _CREDENTIALS if answer.status_code in UNKNOWN_USER else ""
    said = f"{answer.status_code} {answer.reason_phrase}"
    return f"The Prefect server at {shown_url(url)} refuses: {said}.{wanted}"


def shown_url(url: str) -> str:
    """A URL without the credentials in it."""
    return re.sub(r"//[^/]*@", "//", url)
