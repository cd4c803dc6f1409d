"""The API of Prefect that a run talks to: that of the configured server, or an embedded one."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_SSL_CERT_FILE,
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_LOGGING_TO_API_ENABLED,
    get_current_settings,
    temporary_settings,
)

from flows.prefect_api.embedded_api import EmbeddedApi
from flows.prefect_api.heartbeat import own_heartbeats
from flows.prefect_api.server_url import (
    UNKNOWN_USER,
    ask,
    is_loopback,
    may_pass,
    refused,
    require_prefect,
    require_url,
    shown_url,
)
from streaming_ext.errors import ShardmillError
from tasks.core.reporting.progress import RunProgress
from tasks.running.prefect_settings import changed_settings

ANSWER_SECONDS = 10.0  # a server that was started a moment ago gets ready within this
BUSY_SECONDS = 60.0  # one that takes a request and does not answer it is under load
DRAIN_SECONDS = 60.0  # for what Prefect's threads still hold when the run is over
DRAIN_SECONDS_GONE = 5.0  # where nobody answers any more
DRAIN_SECONDS_STOPPED = 2.0  # after Ctrl+C nobody wants to wait
_QUIET_SECONDS = 0.6  # without a new record, where nobody knows how many there will be
_POLL_SECONDS = 0.02
# A single certificate. Each of the nine clients that Prefect opens for a run loads all that it
# trusts, 40 ms of work, also where no TLS is spoken.
_NOBODY = Path(__file__).with_name("nobody.pem")


class UnreachableError(ShardmillError):
    """The configured server does not answer, or no more; or has too much to do, and for long."""

    def __init__(self, url: str, answer: httpx.Response | None = None) -> None:
        if answer is None:
            told = f"The Prefect server at {shown_url(url)} does not answer. Start it (`prefect "
            told += "server start`)"
        else:
            told = f"{refused(answer, url)} Run the command again when it does not"
        super().__init__(
            f"{told}, or run without it: `prefect config unset PREFECT_API_URL`, and unset it in "
            "the environment."
        )


class PrefectApi:
    """An API to talk to, from the start of the command to its end.

    The configured server is used where there is one, else an embedded one lives for the block.
    """

    def __init__(self) -> None:
        configured = get_current_settings().api.url
        self._embedded: EmbeddedApi | None = None
        if not configured:
            self._embedded = EmbeddedApi()
            configured = self._embedded.url
        require_url(configured)
        self.url = configured
        ask_without_proxy(self.url)

    def __enter__(self) -> "PrefectApi":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | object) -> None:
        if self._embedded is not None:
            self._embedded.let_go()  # where no run got as far as to use it

    @contextmanager
    def connected(self, progress: RunProgress) -> Iterator[None]:
        """Wait until it answers, and have runs of the block use it; then have all recorded.

        Args:
            progress: of the run; tells how many task runs there are to record.

        Raises:
            UnreachableError: the configured server does not answer, or refuses for long.
            UsageError: what answers is no API of Prefect, or a proxy cannot be used.
            ShardmillError: it wants other credentials.
        """
        if self._embedded is None:
            require_answer(self.url)
            try:
                with changed_settings(_without_certificates(self.url)), own_heartbeats():
                    yield
            except httpx.TransportError as error:
                raise UnreachableError(self.url) from error
            except (httpx.HTTPStatusError, RuntimeError) as error:
                _raise_refusal(error, self.url)
                raise
            finally:
                drain(DRAIN_SECONDS if answers(self.url) else DRAIN_SECONDS_GONE)
            return
        self._embedded.wait()
        settings: dict[Any, Any] = {
            PREFECT_API_SSL_CERT_FILE: str(_NOBODY),
            PREFECT_API_URL: self.url,
            # Log lines and signs of life are for those who watch a server.
            PREFECT_LOGGING_TO_API_ENABLED: False,
            PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        }
        with temporary_settings(settings):
            try:
                yield
            except BaseException:
                recorded = _let_record(self.url, progress, seconds=DRAIN_SECONDS_STOPPED)
                self._embedded.stop(recorded=recorded)
                raise
            recorded = _let_record(self.url, progress, seconds=DRAIN_SECONDS)
        self._embedded.stop(recorded=recorded)


def _raise_refusal(error: Exception, url: str) -> None:
    """Tell that a server refuses, where that is what an error is of.

    Raises:
        UnreachableError: it does, which may pass.
        ShardmillError: it wants other credentials.
    """
    cause = error if isinstance(error, httpx.HTTPStatusError) else error.__cause__
    if not isinstance(cause, httpx.HTTPStatusError):
        return
    answer = cause.response
    if not str(answer.url).startswith(url.rstrip("/")):
        return  # of somebody else
    if may_pass(answer):
        raise UnreachableError(url, answer) from error
    if answer.status_code in UNKNOWN_USER:
        raise ShardmillError(refused(answer, url)) from error


def _without_certificates(url: str) -> dict[str, str]:
    return {} if _needs_certificates(url) else {"api.ssl_cert_file": str(_NOBODY)}


def _needs_certificates(url: str) -> bool:
    return not url.startswith("http:")


def ask_without_proxy(url: str) -> None:
    """Have HTTP clients of this process and its children ask a server on loopback directly."""
    if not is_loopback(url):
        return
    host = urlsplit(url).hostname or ""
    for name in ("NO_PROXY", "no_proxy"):
        others = os.environ.get(name, "")
        if host not in others.split(","):
            os.environ[name] = f"{others},{host}".lstrip(",")
    _leave_proxies_alone(PrefectHttpxSyncClient)
    _leave_proxies_alone(PrefectHttpxAsyncClient)


def _leave_proxies_alone(kind: type[httpx.Client] | type[httpx.AsyncClient]) -> None:
    """Have Prefect's clients of a server on loopback not look at proxies.

    They make connections to all that the environment names, whichever they use, and raise where
    one is of a kind that they do not know.
    """
    plain = kind.__init__
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def made(client: Any, *arguments: Any, **options: Any) -> None:
        if is_loopback(str(options.get("base_url", ""))):
            options.setdefault("trust_env", False)
        plain(client, *arguments, **options)

    setattr(kind, "__init__", made)  # noqa: B010


def answers(url: str, *, seconds: float = 5.0) -> bool:
    """Whether a server answers, whatever it says."""
    try:
        ask(f"{url}/health", seconds=seconds)
    except httpx.TransportError:
        return False
    return True


def require_answer(url: str) -> None:
    """Wait until a server answers; longer for one that is there and has too much to do.

    Raises:
        UnreachableError: it does not.
        UsageError: what answers is no API of Prefect, or a proxy cannot be used.
    """
    settings = get_current_settings()
    began = time.monotonic()
    answer: httpx.Response | None
    while True:
        try:
            answer = ask(f"{url}/health", seconds=5, headers=settings.client.custom_headers)
        except httpx.ReadTimeout:
            answer, patience = None, BUSY_SECONDS
        except httpx.TransportError:
            answer, patience = None, ANSWER_SECONDS
        else:
            patience = ANSWER_SECONDS if answer.is_server_error else 0.0
        if time.monotonic() - began >= patience:
            break
        time.sleep(0.2)
    if answer is None:
        raise UnreachableError(url)
    if not url.startswith(settings.cloud.api_url):  # which is asked otherwise
        require_prefect(url, answer, seconds=5)


def drain(seconds: float) -> bool:
    """Have Prefect's threads send what they hold; returns whether they did."""
    deadline = time.monotonic() + seconds
    sent = True
    for worker in (EventsWorker, APILogWorker):
        left = max(deadline - time.monotonic(), 0.1)
        ended: Any = worker.drain_all(timeout=left)
        sent = sent and not ended[1]
    return sent


def _let_record(url: str, progress: RunProgress, *, seconds: float) -> bool:
    """Wait until the task runs of a run are written down, which the server does behind its back.

    Returns:
        Whether all are, as far as one knows how many there are.
    """
    deadline = time.monotonic() + seconds
    if not drain(seconds):
        return False
    final = ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]
    question: dict[str, Any] = {"task_runs": {"state": {"type": {"any_": final}}}}
    if progress.run is not None:
        question["flow_runs"] = {"id": {"any_": [progress.run]}}
    last, since = -1, time.monotonic()
    # The dataset is done whatever becomes of these records, so a deaf server is no error.
    with (
        suppress(httpx.TransportError),
        httpx.Client(verify=_needs_certificates(url), trust_env=False) as client,
    ):
        while time.monotonic() < deadline:
            count = client.post(f"{url}/task_runs/count", json=question, timeout=5).json()
            if progress.task_runs is not None and count >= progress.task_runs:
                return True
            if count != last:
                last, since = count, time.monotonic()
            if progress.task_runs is None and time.monotonic() > since + _QUIET_SECONDS:
                return False
            time.sleep(_POLL_SECONDS)
    return False
