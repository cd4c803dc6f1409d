"""Runs of a deployment on a cluster: start, follow, and cancel on Ctrl+C.

With `prefect deployment run --watch`, Ctrl+C only stops the watching, and the run continues.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_type_hints
from uuid import UUID

import httpx
import pydantic
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Cancelling
from pydantic import BaseModel

from flows import datasets
from flows.dashboard.updates import METADATA, PROGRESS, SNAPSHOT
from flows.prefect_api.connection import (
    refusal,
    refuses,
    require_server,
    run_address,
    shown_url,
)
from streaming_ext.base.errors import LostSightError, ShardmillError, UsageError, nearest
from streaming_ext.base.plain_faults import in_words
from streaming_ext.store.locations import require_no_secret
from tasks.core.reporting.progress import Snapshot
from tasks.core.workers.messages import Failure
from tasks.core.workers.pool import as_error

POLL_SECONDS = 1.0
SILENT_SECONDS = 300.0  # without an answer, after which the run is no longer followed
END_SECONDS = 90.0  # after Ctrl+C; hosts end within seconds, and a dead one is given up within this


def open_client() -> SyncPrefectClient:
    """Return a client of the configured server.

    Raises:
        UsageError: no server is configured, or it is not a Prefect server.
        ShardmillError: the server does not answer.
    """
    if not get_current_settings().api.url:
        raise UsageError("No Prefect server is configured. Set PREFECT_API_URL.")
    require_server()
    return get_client(sync_client=True)


def start(client: SyncPrefectClient, deployment: str, settings: Iterable[str]) -> "Follower":
    """Start a run of a deployment, and return its follower.

    Args:
        client: the client of the server.
        deployment: the name of the deployment, or FLOW/DEPLOYMENT.
        settings: settings that override the deployment's configuration, as NAME=VALUE.

    Raises:
        UsageError: there is no such deployment, or no such setting.
        ShardmillError: the server does not answer.
    """
    try:
        flow, found = _found(client, deployment)
        if flow not in (configs := _configs()):
            raise UsageError(f"{deployment} is of the flow {flow}; expected {', '.join(configs)}.")
        kind, given = configs[flow], dict(found.parameters.get("config", {}))
        # The parameter would override a setting.
        if (output := found.parameters.get("output")) is not None:
            given["output" if "output" in kind.model_fields else "dataset"] = output
        parameters = {"config": changed(kind, given, settings), "output": None}
        run = client.create_flow_run_from_deployment(found.id, parameters=parameters)
    except httpx.HTTPError as error:
        raise ShardmillError(refusal(error, str(client.api_url))) from error
    return Follower(client, run.id, pool=found.work_pool_name or "?")


def _found(client: SyncPrefectClient, wanted: str) -> tuple[str, DeploymentResponse]:
    """Find a deployment by its name; return the name of its flow, and the deployment.

    Raises:
        UsageError: there is no deployment of this name, or several.
    """

    def named(**chosen: Any) -> dict[str, tuple[str, DeploymentResponse]]:
        found = client.read_deployments(**chosen)
        flows = {each.flow_id: client.read_flow(each.flow_id).name for each in found}
        return {f"{flows[each.flow_id]}/{each.name}": (flows[each.flow_id], each) for each in found}

    flow, _, name = wanted.rpartition("/")
    chosen = named(deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=[name])))
    matching = [each for each in chosen if flow in {"", each.partition("/")[0]}]
    if len(matching) > 1:
        raise UsageError(f"{wanted} is of several flows. Give one of {', '.join(matching)}.")
    if not matching:
        known = [word for each in named() for word in (each, each.partition("/")[2])]
        url = shown_url(str(client.api_url))
        near = nearest(wanted, known)
        raise UsageError(f"{wanted}: the server at {url} has no such deployment.{near}")
    return chosen[matching[0]]


def _configs() -> dict[str, type[BaseModel]]:
    """Return the type of the configuration of each flow, by the flow's name."""
    flows = [each for each in vars(datasets).values() if isinstance(each, Flow)]
    return {flow.name: get_type_hints(flow.fn)["config"] for flow in flows}


def changed(
    kind: type[BaseModel], config: dict[str, Any], settings: Iterable[str]
) -> dict[str, Any]:
    """Return a configuration with some fields changed, without fields that were never set.

    Raises:
        UsageError: a setting is not NAME=VALUE, or not a field of the configuration.
    """
    given = dict(config)
    for setting in settings:
        require_no_secret(setting, "an argument")
        name, separator, text = setting.partition("=")
        if not separator:
            raise UsageError(f"{setting!r}: expected NAME=VALUE, such as output=s3://bucket/text.")
        name = name.lstrip("-").replace("-", "_")
        require_no_secret(text, name)
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:  # its message would repeat the value, which may be a secret
            raise UsageError(f"{name}: the value after '=' is not YAML.") from error
        given[name] = value
    try:
        return kind.model_validate(given).model_dump(mode="json", exclude_unset=True)
    except pydantic.ValidationError as error:
        lines = ["The deployment cannot run with these settings:"]
        for fault in error.errors(include_url=False):
            unknown = fault["type"] == "extra_forbidden"
            near = nearest(str(fault["loc"][0]), kind.model_fields) if unknown else ""
            lines.append(f"{in_words(fault)}{near and '.'}{near}")
        raise UsageError("\n".join(lines)) from error


class Follower:
    """The follower of a run, which reads the counters from the run's progress artifact.

    Args:
        client: the client of the server.
        run: the id of the run.
        pool: the work pool whose workers run it.
    """

    def __init__(self, client: SyncPrefectClient, run: UUID, *, pool: str) -> None:
        self._client, self.run, self.pool = client, run, pool
        self._now = Snapshot(phase="starting")
        self._heard = time.monotonic()

    @property
    def address(self) -> str:
        """The URL at which Prefect shows the run."""
        return run_address(self.run)

    def snapshot(self) -> Snapshot:
        """Return the latest counters."""
        return self._now

    def follow(self) -> State:
        """Wait for the end of the run.

        Raises:
            LostSightError: the server has been gone for too long, or refuses.
        """
        while True:
            if (state := self._state()) is not None:
                if state.is_final():
                    return state
                self._now = self._snapshot(state)
            time.sleep(POLL_SECONDS)

    def cancel(self) -> str:
        """Cancel the run, wait until it has ended everywhere, and return the result in words.

        Raises:
            LostSightError: the server refuses.
        """
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            state = self._state()
            if state is not None and state.is_final():
                return f"The run ended as {state.name}."
            if state is not None and not state.is_cancelling():
                wanted: State = Cancelled() if state.is_scheduled() else Cancelling()
                with suppress(httpx.HTTPError):
                    self._client.set_flow_run_state(self.run, wanted, force=True)
            time.sleep(POLL_SECONDS)
        inspect = f"`prefect flow-run inspect {self.run}`"
        return f"The run has not ended within {END_SECONDS:.0f} s: {inspect}."

    def _state(self) -> State | None:
        """Read the state of the run; None if the server does not answer now.

        Raises:
            LostSightError: the server has not answered for too long, or refuses.
        """
        try:
            state = self._client.read_flow_run(self.run).state
        except ObjectNotFound as error:
            raise LostSightError(f"The run {self.run} was deleted on the server.") from error
        except httpx.HTTPError as error:
            silent = time.monotonic() - self._heard
            phase = f"the Prefect server has not answered for {silent:.0f} s"
            self._now = replace(self._now, phase=phase, stopped=True)
            if refuses(error) or silent > SILENT_SECONDS:
                words = refusal(error, str(self._client.api_url))
                raise LostSightError(f"{words} The run {self.run} may continue.") from error
            return None
        self._heard = time.monotonic()
        return state

    def _snapshot(self, state: State) -> Snapshot:
        """Read the counters of the run, which is in this state."""
        if state.is_scheduled() or state.is_pending():
            return replace(self._now, phase=f"waiting for a worker of the work pool {self.pool}")
        if not state.is_running():
            return replace(self._now, phase=(state.name or "").lower())
        wanted = {"flow_run_id": {"any_": [str(self.run)]}, "key": {"any_": [PROGRESS]}}
        try:
            found = self._client.request("POST", "/artifacts/filter", json={"artifacts": wanted})
            return SNAPSHOT.validate_json(found.json()[0]["metadata_"][METADATA])
        except httpx.HTTPError:
            return self._now
        except (IndexError, KeyError, TypeError, pydantic.ValidationError):  # none yet
            return replace(self._now, phase="a worker has the run; looking at the sources")


def ended_for_wrong_usage(state: State) -> bool:
    """Return whether a run failed with an error that `shardmill shard` reports as wrong usage."""
    words = (state.message or "").removeprefix("Flow run encountered an exception: ")
    error = as_error(Failure(error=words.partition(":")[0], message=words))
    return state.is_failed() and isinstance(error, UsageError)
