"""The Prefect API that a run talks to: the configured server's, or that of a server of its own."""

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.runtime import deployment
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_LOGGING_TO_API_ENABLED,
    get_current_settings,
    temporary_settings,
)

from flows.prefect_api.own_server import FLUSH_SECONDS, OwnServer
from flows.stops import leave
from flows.terminal.consoles import tell
from streaming_ext.base.errors import ShardmillError, UsageError, one_line
from tasks.core.reporting.progress import RunProgress

REFUSED_SECONDS = 2.0  # a server that was started a moment ago listens within this
ANSWER_SECONDS = 10.0  # one that listens or is elsewhere gets ready within this
BUSY_SECONDS = 60.0  # one that takes a request and does not answer it is under load
DRAIN_SECONDS = 10.0  # for what Prefect's threads still hold when the run is over
GONE_SECONDS = 60.0  # of a server that does not answer, until a deployed run leaves without it
LOOK_SECONDS = 2.0
_UNKNOWN_USER: Final = {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}
_PASSING: Final = {httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS}


class UnreachableError(ShardmillError):
    """The configured server does not answer, or refuses."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(
            f"The Prefect server at {shown_url(url)} {refusal(error)} Start it, or run without "
            "it: `prefect config unset PREFECT_API_URL`, and unset it in the environment."
        )


def shown_url(url: str) -> str:
    """A URL without the credentials in it."""
    return re.sub(r"//[^/]*@", "//", url)


def refusal(error: Exception) -> str:
    """What to say of a server that does not answer as it should."""
    if not isinstance(error, httpx.HTTPStatusError):
        return f"does not answer: {one_line(error)}."
    said = f"refuses: {error.response.status_code} {error.response.reason_phrase}."
    wants = " Set PREFECT_API_AUTH_STRING, or PREFECT_API_KEY, to what it wants."
    return said + (wants if error.response.status_code in _UNKNOWN_USER else "")


def may_pass(answer: httpx.Response) -> bool:
    """Whether a server that refused may answer otherwise a moment later."""
    return answer.is_server_error or answer.status_code in _PASSING


@contextmanager
def api_in_use(own: OwnServer | None, progress: RunProgress) -> Iterator[None]:
    """Have flow runs of the block use the configured server, or else the command's own.

    Raises:
        UnreachableError: the configured server does not answer any more, or refuses.
        StorageError: the command's own did not start.
    """
    url = get_current_settings().api.url
    if url:
        with _configured_in_use(url, progress):
            yield
        return
    assert own is not None  # noqa: S101  (started where no server is configured)
    own_url = own.url()
    ask_without_proxy(own_url)
    settings: dict[Any, Any] = {
        PREFECT_API_URL: own_url,
        # Log lines and signs of life are for those who watch a server.
        PREFECT_LOGGING_TO_API_ENABLED: False,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }
    with temporary_settings(settings):
        try:
            yield
        finally:
            drain(DRAIN_SECONDS)
            _let_record(own_url)


@contextmanager
def _configured_in_use(url: str, progress: RunProgress) -> Iterator[None]:
    """Send the configured server all records in the end; the progress says where it is gone."""
    over, server = threading.Event(), httpx.URL(url).netloc

    def watch() -> None:
        while not over.wait(LOOK_SECONDS):
            if progress.ended and not answers(url):
                progress.enter(f"done; the Prefect server at {shown_url(url)} does not answer")

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except (httpx.HTTPError, RuntimeError) as error:
        cause = error if isinstance(error, httpx.HTTPError) else error.__cause__
        if isinstance(cause, httpx.HTTPError) and cause.request.url.netloc == server:
            raise UnreachableError(url, cause) from error
        raise
    finally:
        drain(DRAIN_SECONDS if answers(url) else 0.0)
        over.set()


def drain(seconds: float) -> None:
    """Have Prefect's threads send what they hold, within bounds."""
    for worker in (EventsWorker, APILogWorker):
        worker.drain_all(timeout=seconds)


def _let_record(url: str) -> None:
    """Wait, within bounds, until a server has recorded the tasks it knows of.

    When it ends, it drops what it has received and not yet recorded.
    """
    deadline = time.monotonic() + DRAIN_SECONDS
    completed = {"task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
    seen: list[int] = []
    with suppress(httpx.HTTPError), httpx.Client(base_url=url, timeout=DRAIN_SECONDS) as client:
        while time.monotonic() < deadline:
            counts = [
                client.post("/task_runs/count", json=which).json() for which in ({}, completed)
            ]
            if counts == seen:
                return
            seen = counts
            time.sleep(2 * FLUSH_SECONDS)


def ask_without_proxy(url: str) -> None:
    """Have clients of this process and its children ask a server on this machine directly."""
    host = urlsplit(url).hostname or ""
    if not is_loopback(url):
        return
    for name in ("NO_PROXY", "no_proxy"):
        others = os.environ.get(name, "")
        if host not in others.split(","):
            os.environ[name] = f"{others},{host}".lstrip(",")


def is_loopback(url: str) -> bool:
    """Whether a URL is of this machine itself, which no proxy can reach."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host.startswith("127.")


def require_server() -> None:
    """Make sure that the configured server answers, where one is configured; see below."""
    url = get_current_settings().api.url
    if url:
        require_answer(url)


def require_answer(url: str) -> None:
    """Wait until a server answers; longer for one that is there and has too much to do.

    Raises:
        UnreachableError: it does not.
        UsageError: what answers is no API of Prefect, or cannot be asked.
    """
    began = time.monotonic()
    error: httpx.HTTPError
    while True:
        try:
            answer = _ask(url, seconds=5.0)
            if not answer.is_server_error:
                break
            error, patience = _status_error(answer), ANSWER_SECONDS
        except httpx.ReadTimeout as busy:
            error, patience = busy, BUSY_SECONDS
        except httpx.ConnectError as refused:
            error, patience = refused, REFUSED_SECONDS if is_loopback(url) else ANSWER_SECONDS
        except httpx.TransportError as unreachable:
            error, patience = unreachable, ANSWER_SECONDS
        if time.monotonic() - began >= patience:
            raise UnreachableError(url, error)
        time.sleep(0.2)
    if answer.status_code in _UNKNOWN_USER or url.startswith(get_current_settings().cloud.api_url):
        return  # Prefect's client has more to show, or it is asked otherwise
    if not answer.is_success or answer.text.strip() != "true":
        raise UsageError(
            f"What answers at {shown_url(url)} is no API of Prefect ({answer.status_code} "
            f"{answer.reason_phrase} for {shown_url(url)}/health). PREFECT_API_URL is to be such "
            "as http://127.0.0.1:4200/api."
        )


def answers(url: str) -> bool:
    """Whether a server answers, whatever it says."""
    try:
        _ask(url, seconds=LOOK_SECONDS)
    except httpx.TransportError:
        return False
    return True


def _ask(url: str, *, seconds: float) -> httpx.Response:
    """What a server says to the question whether it is well.

    Raises:
        httpx.TransportError: nothing, in this time.
        UsageError: the URL is none, or a proxy that the environment names cannot be used.
    """
    headers = get_current_settings().client.custom_headers
    try:
        ask_without_proxy(url)
        return httpx.get(f"{url}/health", timeout=seconds, headers=headers, follow_redirects=True)
    except (httpx.UnsupportedProtocol, httpx.InvalidURL, ImportError, ValueError) as error:
        raise UsageError(
            f"PREFECT_API_URL, or the proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names, "
            f"cannot be used: {shown_url(one_line(error))}. PREFECT_API_URL is to be such as "
            "http://127.0.0.1:4200/api; NO_PROXY names hosts that are asked without a proxy."
        ) from error


def _status_error(answer: httpx.Response) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("refused", request=answer.request, response=answer)


@contextmanager
def leaving_without_a_server() -> Iterator[None]:
    """After the block, which is all of a deployed run's work, end where the server is gone.

    What Prefect's threads hold for the server they try to send at the interpreter's exit, for
    hours. The dataset needs none of it.
    """
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
            if answers(url):
                heard = time.monotonic()
            time.sleep(LOOK_SECONDS)
        tell(
            f"the Prefect server at {shown_url(url)} went away; its pages do not show how the "
            "run ended."
        )
        leave(1)  # the worker that started the process tells the server, once there is one

    threading.Thread(target=watch, name="shardmill-departure", daemon=True).start()
