"""Deployments that `--executor prefect://` may name, on a real server."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.executors.on_hosts import WorkPool
from streaming_ext.base.errors import UsageError
from tests.servers.prefect.server import ask, free_port

PARAMETERS = {"output": "/out", "run": "run", "partition": 3, "attempt": 1}


@pytest.fixture(autouse=True)
def client(api_url) -> Iterator[SyncPrefectClient]:
    with temporary_settings({PREFECT_API_URL: api_url}), get_client(sync_client=True) as made:
        yield made


def deploy(api_url: str, *parameters: str, required: tuple[str, ...] = ()) -> tuple[str, str]:
    """Make a deployment of a flow with these parameters; return its name and its URL."""
    name = f"flow-{uuid4().hex[:8]}"
    flow = ask("POST", f"{api_url}/flows/", name=name)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {parameter: {"title": parameter} for parameter in parameters},
        "required": list(required),
    }
    made = ask(
        "POST",
        f"{api_url}/deployments/",
        name="hosts",
        flow_id=flow["id"],
        enforce_parameter_schema=True,
        parameter_openapi_schema=schema,
    )
    return f"{name}/hosts", f"{api_url}/deployments/{made['id']}"


def test_an_attempt_is_one_run_however_often_it_is_sent(api_url, client) -> None:
    name, _ = deploy(api_url, *PARAMETERS)
    found = WorkPool(client, name, 1)
    first = found.start("attempt-1", PARAMETERS)
    assert first is not None
    assert found.start("attempt-1", PARAMETERS) == first
    assert found.start("attempt-2", PARAMETERS | {"attempt": 2}) != first
    # A worker names a run when it starts it; until then, the run waits under this name.
    assert client.read_flow_run(UUID(first)).name == "partition 3 of /out"


def test_one_that_does_not_exist(api_url) -> None:
    with (
        temporary_settings({PREFECT_API_URL: api_url.replace("//", "//me:secret@")}),
        get_client(sync_client=True) as client,
        pytest.raises(UsageError, match=f"{api_url} has no such deployment"),
    ):
        WorkPool(client, "no/such", 1)


def test_one_that_wants_more(api_url, client) -> None:
    name, _ = deploy(api_url, *PARAMETERS, "region", required=("region",))
    with pytest.raises(UsageError, match=r"(?s)starts no run of it.*409.*region"):
        WorkPool(client, name, 1).start("attempt-1", PARAMETERS)


def test_one_that_is_deleted_meanwhile(api_url, client) -> None:
    name, url = deploy(api_url, *PARAMETERS)
    found = WorkPool(client, name, 1)
    ask("DELETE", url)
    with pytest.raises(UsageError, match="was deleted"):
        found.start("attempt-1", PARAMETERS)


def test_a_server_that_is_away_is_sent_the_request_again(api_url, client) -> None:
    found = WorkPool(client, deploy(api_url, *PARAMETERS)[0], 1)
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}):
        assert found.start("attempt-1", PARAMETERS) is None
