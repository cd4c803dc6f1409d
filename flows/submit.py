"""Running a deployment from afar: started, followed, and on Ctrl+C cancelled and seen to its end.

`prefect deployment run --watch` only lets go of the run on Ctrl+C; the run goes on.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from uuid import UUID

import httpx
import pydantic
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Cancelling
from rich.console import Console

from flows.commands.explain import explain_values
from flows.terminal.visible import visible
from streaming_ext.errors import ShardmillError, UsageError
from tasks.core.config import ShardConfig

POLL_SECONDS = 1.0
END_SECONDS = 90.0  # after Ctrl+C: hosts end within seconds, a dead one is given up within this


def submit(deployment: str, settings: Iterable[str], console: Console) -> bool:
    """Run a deployment of `shard-dataset` to its end; returns whether it ended well.

    Args:
        deployment: its name; that of the flow goes before it unless given.
        settings: fields of its configuration that are to be others, as NAME=VALUE.
        console: that is told how it goes.

    Raises:
        UsageError: there is no such deployment, or such a setting.
        ShardmillError: the server does not answer.
    """
    name = deployment if "/" in deployment else f"shard-dataset/{deployment}"
    url = get_current_settings().api.url
    if url is None:
        raise UsageError("No Prefect server is configured. Set PREFECT_API_URL.")
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name(name)
            parameters = {"config": changed(found.parameters.get("config", {}), settings)}
            run = client.create_flow_run_from_deployment(found.id, parameters=parameters)
        except ObjectNotFound as error:
            raise UsageError(f"{name}: the server at {url} has no such deployment.") from error
        except httpx.HTTPError as error:
            raise ShardmillError(
                f"The Prefect server at {url} does not answer: {error}."
            ) from error
        console.print(f"{name}: flow run {run.id}, of the work pool {found.work_pool_name}")
        try:
            ended = _follow(client, run.id, console)
        except BaseException:
            console.print("Stopping all of it ...")
            _cancel(client, run.id, console)
            raise
    assert ended.state is not None  # noqa: S101  (of a run that has ended)
    return ended.state.is_completed()


def changed(config: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A configuration with some fields changed; what nobody gave stays out of it.

    Raises:
        UsageError: a setting is no NAME=VALUE, or not one of a configuration.
    """
    given = dict(config)
    for setting in settings:
        name, separator, text = setting.partition("=")
        if not separator:
            raise UsageError(f"{setting!r}: expected NAME=VALUE, such as output=s3://bucket/text.")
        name = name.lstrip("-").replace("-", "_")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UsageError(f"{setting!r}: the value cannot be read: {error}") from error
        given[name] = [value] if name == "sources" and isinstance(value, str) else value
    try:
        return ShardConfig.model_validate(given).model_dump(mode="json", exclude_unset=True)
    except pydantic.ValidationError as error:
        raise UsageError(
            f"The deployment cannot run with these settings:\n{explain_values(error)}"
        ) from error


def _follow(client: SyncPrefectClient, run: UUID, console: Console) -> FlowRun:
    """Wait for the end of a run, and tell each state that it goes through."""
    told = ""
    while True:
        with suppress(httpx.HTTPError):  # a server that is restarted comes back
            found = client.read_flow_run(run)
            state = found.state
            if state is not None and (line := f"{state.name}: {state.message or '-'}") != told:
                console.print(visible(line), markup=False, soft_wrap=True)
                told = line
            if state is not None and state.is_final():
                return found
        time.sleep(POLL_SECONDS)


def _cancel(client: SyncPrefectClient, run: UUID, console: Console) -> None:
    """Cancel a run and wait until nothing of it is left."""
    deadline = time.monotonic() + END_SECONDS
    asked = False
    while time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            state = client.read_flow_run(run).state
            if state is not None and state.is_final():
                console.print(f"The run ended as {state.name}.")
                return
            if not asked:
                waits = state is not None and state.is_scheduled()
                client.set_flow_run_state(run, Cancelled() if waits else Cancelling(), force=True)
                asked = True
        time.sleep(POLL_SECONDS)
    console.print(
        f"The run has not ended within {END_SECONDS:.0f} s: `prefect flow-run inspect {run}`."
    )
