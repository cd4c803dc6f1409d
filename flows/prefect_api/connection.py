"""The Prefect API of a run: of the configured server, or of the command's own server."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeGuard
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import TERMINAL_STATES
from prefect.context import SettingsContext, get_settings_context
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
from prefect.utilities.urls import url_for

from flows.prefect_api.own_server import FLUSH_SECONDS, OwnServer
from flows.stops import leave
from flows.terminal.printing import print_problem
from streaming_ext.base.errors import UnreachableError, UsageError, one_line
from tasks.core.reporting.progress import RunProgress

REFUSED_SECONDS = 2.0  # within which a server that was just started listens
ANSWER_SECONDS = 60.0  # within which a listening server answers, also under load
REQUEST_SECONDS = 5.0  # for a request that is sent once, so that a hanging server delays nobody
DRAIN_SECONDS = 10.0  # for Prefect's threads to send their records when the run is over
GONE_SECONDS = 60.0  # without an answer, after which a deployed run ends without the server
LOOK_SECONDS = 2.0
_PASSING: Final = {httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS}


def _unreachable(url: str, error: Exception) -> UnreachableError:
    """Return the error for a server that does not answer, or refuses."""
    return UnreachableError(
        f"{refusal(error, url)} Start it, or run without it: `prefect config unset "
        "PREFECT_API_URL`, and unset it in the environment."
    )


def shown_url(url: str) -> str:
    """Return a URL without its credentials."""
    return re.sub("//.*@", "//", url).rstrip("/")  # a password may hold a slash


def run_address(run: UUID) -> str:
    """Return the URL at which Prefect shows a flow run."""
    return shown_url(url_for("flow-run", run) or "")


def refusal(error: Exception, url: str) -> str:
    """Describe the refusal of a server, or its silence."""
    words = f"does not answer: {one_line(error)}."
    if isinstance(error, httpx.HTTPStatusError):
        words = f"refuses: {error.response.status_code} {error.response.reason_phrase}."
    return f"The Prefect server at {shown_url(url)} {words}"


def refuses(error: Exception) -> TypeGuard[httpx.HTTPStatusError]:
    """Return whether an error is a server's answer that will be the same a moment later."""
    if not isinstance(error, httpx.HTTPStatusError):
        return False
    return not (error.response.is_server_error or error.response.status_code in _PASSING)


@contextmanager
def impatient() -> Iterator[None]:
    """Make clients try each request once, for a few seconds; by default they try for a minute.

    `temporary_settings` of Prefect would read all settings again, which takes a fifth of a second.
    """
    before = get_settings_context()
    api, client = before.settings.api, before.settings.client
    settings = before.settings.model_copy(
        update={
            "api": api.model_copy(update={"request_timeout": REQUEST_SECONDS}),
            "client": client.model_copy(update={"max_retries": 0}),
        }
    )
    with SettingsContext(profile=before.profile, settings=settings):
        yield


@contextmanager
def one_attempt() -> Iterator[None]:
    """Send each request once, and ignore a failure."""
    with impatient(), suppress(httpx.HTTPError):
        yield


@contextmanager
def api_in_use(own: OwnServer | None, progress: RunProgress) -> Iterator[None]:
    """Make a flow run in the block use the configured server, or else the command's own.

    Args:
        own: the command's own server; None if a server is configured.
        progress: the progress of the run.

    Raises:
        UnreachableError: the configured server stopped answering, or refuses.
        StorageError: the command's own server did not start.
    """
    url = get_current_settings().api.url
    if url:
        with _configured_in_use(url):
            yield
        return
    assert own is not None  # noqa: S101  (started if no server is configured)
    own_url = own.url()
    settings: dict[Any, Any] = {
        PREFECT_API_URL: own_url,
        # Log lines and heartbeats are for people who watch a server.
        PREFECT_LOGGING_TO_API_ENABLED: False,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }
    with temporary_settings(settings):
        try:
            yield
        finally:
            drain(DRAIN_SECONDS)
            _let_record(own_url, progress)


@contextmanager
def _configured_in_use(url: str) -> Iterator[None]:
    """Send all records to the server at the end, and explain why it cannot be reached."""
    try:
        yield
    except (httpx.HTTPError, RuntimeError) as error:
        cause = error if isinstance(error, httpx.HTTPError) else error.__cause__
        server = httpx.URL(url).netloc
        if isinstance(cause, httpx.HTTPError) and cause.request.url.netloc == server:
            raise _unreachable(url, cause) from error
        raise
    finally:
        drain(DRAIN_SECONDS if answers(url) else 0.0)


def outside_of_loops(function: Callable[[], Any]) -> Any:
    """Call a function of Prefect that would return a coroutine if an event loop runs.

    An event loop runs in a notebook, and in the coroutines of a program.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def drain(seconds: float) -> None:
    """Let Prefect's threads send their records, within this time."""
    for worker in (EventsWorker, APILogWorker):
        outside_of_loops(partial(worker.drain_all, timeout=seconds))


def _let_record(url: str, progress: RunProgress) -> None:
    """Wait, within limits, until a server has recorded the end of all task runs of a flow run.

    When the server ends, it drops records that it has received and not written.
    """
    # If a run was stopped, some tasks never end.
    seconds = 2 * FLUSH_SECONDS if progress.report is None else DRAIN_SECONDS
    deadline = time.monotonic() + seconds
    ended = {
        "flow_runs": {"id": {"any_": [progress.run]}},
        "task_runs": {"state": {"type": {"any_": list(TERMINAL_STATES)}}},
    }
    with suppress(httpx.HTTPError), httpx.Client(base_url=url, timeout=DRAIN_SECONDS) as client:
        while progress.tasks and time.monotonic() < deadline:
            if client.post("/task_runs/count", json=ended).json() >= progress.tasks:
                return
            time.sleep(0.1)


def require_server() -> None:
    """Wait until the configured server answers; wait longer if it listens.

    Raises:
        UnreachableError: the server does not answer.
        UsageError: it is not a Prefect server, or the URL or a proxy cannot be used.
    """
    settings = get_current_settings()
    url, began = settings.api.url, time.monotonic()
    if not url or url.startswith(settings.cloud.api_url):
        return
    while True:
        try:
            with impatient():
                if get_client(sync_client=True).request("GET", "/health").json() is True:
                    return
            raise ValueError("its answer is not that of a Prefect server")  # noqa: TRY301
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, ImportError, ValueError) as error:
            raise UsageError(
                f"PREFECT_API_URL {shown_url(url)}, or a proxy of the environment, cannot be used: "
                f"{shown_url(one_line(error))}. The URL must be like http://127.0.0.1:4200/api."
            ) from error
        except httpx.HTTPError as error:
            patience = REFUSED_SECONDS if isinstance(error, httpx.ConnectError) else ANSWER_SECONDS
            if refuses(error) or time.monotonic() - began >= patience:
                raise _unreachable(url, error) from error
        time.sleep(0.2)


def answers(url: str) -> bool:
    """Return whether a server answers, with any status."""
    try:
        httpx.get(f"{url}/health", timeout=LOOK_SECONDS)
    except httpx.TransportError:
        return False
    return True


@contextmanager
def leaving_without_a_server() -> Iterator[None]:
    """Let a deployed run end after the block, its whole work, even if the server is gone.

    At the interpreter's exit, Prefect's threads would try for hours to send their records, which
    the dataset does not need.
    """
    try:
        yield
    finally:
        url = get_current_settings().api.url
        if deployment.id and url is not None:
            leave_if_gone(url)


def leave_if_gone(url: str) -> None:
    """Start a thread that ends this process when a server has not answered for a minute."""

    def watch() -> None:
        heard = time.monotonic()
        while time.monotonic() - heard < GONE_SECONDS:
            if answers(url):
                heard = time.monotonic()
            time.sleep(LOOK_SECONDS)
        print_problem(
            f"the Prefect server at {shown_url(url)} went away; its pages do not show how the "
            "run ended."
        )
        leave(1)  # the worker that started the process reports it to the server later

    threading.Thread(target=watch, name="shardmill-departure", daemon=True).start()
