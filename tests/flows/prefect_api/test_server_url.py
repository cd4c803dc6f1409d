"""A PREFECT_API_URL that leads nowhere, and unusable proxies: one line of message for each."""

from uuid import UUID

import httpx
import prefect
import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.prefect_api import connection
from flows.prefect_api.connection import api_in_use, require_server, run_address
from flows.submit import open_client
from streaming_ext.base.errors import UnreachableError, UsageError
from tasks.core.reporting.progress import RunProgress
from tests.servers.scripted import PAGE, Answer, scripted

LAST = {"Connection": "close"}  # Prefect's client does not close a connection that it cannot use
MISSING = Answer(404, b'{"detail":"Not Found"}', {"Content-Type": "application/json"})


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:4200/api", "ftp://me:secret@host/api"],
)
def test_what_is_no_url_is_refused_without_credentials(url) -> None:
    with (
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises(UsageError, match="PREFECT_API_URL") as raised,
    ):
        require_server()
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("password", ["secret", "a/secret", "a@secret"])
def test_the_address_of_a_run_holds_no_credentials(password) -> None:
    with temporary_settings({PREFECT_API_URL: f"http://me:{password}@host:4200/api"}):
        assert run_address(UUID(int=1)) == f"http://host:4200/runs/flow-run/{UUID(int=1)}"


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (MISSING, UnreachableError, "refuses: 404"),
        (PAGE, UsageError, r"PREFECT_API_URL .* cannot be used"),
    ],
)
def test_another_server(answer, error, words) -> None:
    with (
        scripted(lambda *_: answer) as server,
        temporary_settings({PREFECT_API_URL: server.url}),
    ):
        for ask in (require_server, open_client):
            with pytest.raises(error, match=words):
                ask()


def test_a_server_that_fails_is_waited_for(monkeypatch) -> None:
    answers = iter([Answer(503), Answer(200, b"true")])
    with (
        scripted(lambda *_: next(answers)) as server,
        temporary_settings({PREFECT_API_URL: f"{server.url}/api"}),
    ):
        require_server()
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.0)
    with (
        scripted(lambda *_: Answer(503)) as server,
        temporary_settings({PREFECT_API_URL: f"{server.url}/api"}),
        pytest.raises(UnreachableError, match="refuses: 503"),
    ):
        require_server()


def _run_on(url: str) -> None:
    """Run a flow on a server, as commands do."""
    settings = {PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(settings):
        require_server()
        with api_in_use(None, RunProgress()):
            flow(lambda: None)()


@pytest.mark.parametrize("created", [False, True])
def test_a_server_that_is_well_and_refuses_to_record_a_run(created) -> None:
    """The server refuses before the run is created, or while it is created."""

    def busy(_: str, path: str, __: object) -> Answer:
        known = {"/api/health": b"true"}
        if created:
            known["/api/admin/version"] = f'"{prefect.__version__}"'.encode()
        if path in known:
            return Answer(200, known[path], LAST)
        return Answer(404 if "csrf-token" in path else 503, headers=LAST)

    with scripted(busy) as server, pytest.raises(UnreachableError) as raised:
        _run_on(server.url.replace("//", "//me:secret@") + "/api")
    printed = str(raised.value)
    assert printed.startswith(
        f"The Prefect server at {server.url}/api refuses: 503 Service Unavail"
    )
    assert "prefect config unset PREFECT_API_URL" in printed
    assert "\n" not in printed
    assert "secret" not in printed
    assert created == (("POST", "/api/flows/") in server.asked)


def test_a_refusal_of_somebody_else_is_not_the_server_s() -> None:
    with (
        scripted(lambda *_: Answer(200, b"true")) as server,
        scripted(lambda *_: Answer(503)) as other,
        temporary_settings({PREFECT_API_URL: f"{server.url}/api"}),
        pytest.raises(httpx.HTTPStatusError),
        api_in_use(None, RunProgress()),
    ):
        httpx.get(other.url).raise_for_status()


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "ftp://127.0.0.1:9", "http://[::1"])
def test_a_proxy_that_cannot_be_used(monkeypatch, proxy) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    for name in ("ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, proxy)
    with (
        temporary_settings({PREFECT_API_URL: "http://prefect.corp.example/api"}),
        pytest.raises(UsageError, match=r"proxy .* cannot be used") as raised,
    ):
        require_server()
    assert "\n" not in str(raised.value)


def test_an_empty_url_is_none() -> None:
    with temporary_settings({PREFECT_API_URL: ""}):
        require_server()
        with pytest.raises(UsageError, match="No Prefect server is configured"):
            open_client()
