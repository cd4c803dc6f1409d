"""Running a deployment from afar: started, followed, and on Ctrl+C cancelled and seen to its end.

`prefect deployment run --watch` only lets go of the run on Ctrl+C; the run goes on.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import pydantic
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Cancelling

from flows.commands.options import explain_values
from flows.dashboard.followed import FollowedRun
from flows.prefect_api.connection import may_pass, refusal, require_answer, shown_url
from streaming_ext.base.errors import ShardmillError, UsageError
from streaming_ext.store.locations import require_no_secret
from tasks.core.config import ShardConfig

POLL_SECONDS = 1.0
SILENT_SECONDS = 300.0  # of a server; then nothing is waited for any more
END_SECONDS = 90.0  # after Ctrl+C: hosts end within seconds, a dead one is given up within this


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """A run that was asked for.

    Attributes:
        deployment: with the name of its flow before it.
        pool: work pool whose workers take it.
    """

    run: UUID
    deployment: str
    pool: str


def start(client: SyncPrefectClient, deployment: str, settings: Iterable[str]) -> Submitted:
    """Ask for a run of a deployment of `shard-dataset`.

    Args:
        client: of the server.
        deployment: its name; that of the flow goes before it unless given.
        settings: fields of its configuration that are to be others, as NAME=VALUE.

    Raises:
        UsageError: there is no such deployment, or such a setting.
        ShardmillError: the server does not answer.
    """
    name = deployment if "/" in deployment else f"shard-dataset/{deployment}"
    if name.count("/") != 1:
        raise UsageError(f"{name}: expected DEPLOYMENT, such as shard-fineweb, or FLOW/DEPLOYMENT.")
    url = server_url()
    try:
        found = client.read_deployment_by_name(name)
        parameters = {"config": changed(found.parameters.get("config", {}), settings)}
        run = client.create_flow_run_from_deployment(found.id, parameters=parameters)
    except ObjectNotFound as error:
        raise UsageError(
            f"{name}: the server at {shown_url(url)} has no such deployment."
        ) from error
    except httpx.HTTPError as error:
        raise _no_answer(error, url) from error
    return Submitted(run=run.id, deployment=name, pool=found.work_pool_name or "?")


def server_url() -> str:
    """Where the server is.

    Raises:
        UsageError: none is configured.
    """
    url = get_current_settings().api.url
    if not url:
        raise UsageError("No Prefect server is configured. Set PREFECT_API_URL.")
    return url


def open_client() -> SyncPrefectClient:
    """A client of the configured server.

    Raises:
        UsageError: none is configured, or what answers is none of Prefect's.
        ShardmillError: it does not answer.
    """
    require_answer(server_url())
    return get_client(sync_client=True)


def changed(config: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A configuration with some fields changed; what nobody gave stays out of it.

    Raises:
        UsageError: a setting is no NAME=VALUE, or not one of a configuration.
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
        except yaml.YAMLError as error:  # which repeats it, secrets and all
            raise UsageError(f"{name}: the value behind '=' is no YAML.") from error
        given[name] = [value] if name == "sources" and isinstance(value, str) else value
    try:
        return ShardConfig.model_validate(given).model_dump(mode="json", exclude_unset=True)
    except pydantic.ValidationError as error:
        raise UsageError(
            f"The deployment cannot run with these settings:\n{explain_values(error)}"
        ) from error


class LostSightError(ShardmillError):
    """Nothing can be asked about a run any more, which goes on or not."""


def follow(client: SyncPrefectClient, submitted: Submitted, followed: FollowedRun) -> State:
    """Wait for the end of a run; `followed` is told how far it is.

    Raises:
        LostSightError: the server is gone for good, or refuses to tell.
    """
    heard = time.monotonic()
    while True:
        try:
            with _asking(submitted.run):
                state = client.read_flow_run(submitted.run).state
                if state is not None and state.is_final():
                    return state
                if state is not None:
                    followed.update(client, state, pool=submitted.pool)
            heard = time.monotonic()
        except _NoAnswerError as error:
            silent = time.monotonic() - heard
            followed.lose_sight(silent)
            if silent > SILENT_SECONDS:
                raise LostSightError(
                    f"{_no_answer(error.cause, server_url())} It has not for {silent:.0f} s. The "
                    f"run {submitted.run} may go on without it: its hosts ask it for little."
                ) from error
        time.sleep(POLL_SECONDS)


def cancel(client: SyncPrefectClient, run: UUID, tell: Callable[[str], None]) -> None:
    """Cancel a run and wait until nothing of it is left.

    Raises:
        LostSightError: the server refuses.
    """
    deadline = time.monotonic() + END_SECONDS
    asked = False
    while time.monotonic() < deadline:
        with suppress(_NoAnswerError), _asking(run):
            state = client.read_flow_run(run).state
            if state is not None and state.is_final():
                tell(f"The run ended as {state.name}.")
                return
            if not asked:
                waits = state is not None and state.is_scheduled()
                client.set_flow_run_state(run, Cancelled() if waits else Cancelling(), force=True)
                asked = True
        time.sleep(POLL_SECONDS)
    tell(f"The run has not ended within {END_SECONDS:.0f} s: `prefect flow-run inspect {run}`.")


class _NoAnswerError(Exception):
    """A server did not answer, which may pass."""

    def __init__(self, cause: httpx.HTTPError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextmanager
def _asking(run: UUID) -> Iterator[None]:
    """Tell what may pass from what will not.

    Raises:
        LostSightError: the server refuses, or knows no such run any more.
        _NoAnswerError: it is away, or has too much to do: a server that is restarted comes back.
    """
    try:
        yield
    except ObjectNotFound as error:
        raise LostSightError(f"The run {run} was deleted at the Prefect server.") from error
    except httpx.HTTPStatusError as error:
        if may_pass(error.response):
            raise _NoAnswerError(error) from error
        raise LostSightError(str(_no_answer(error, server_url()))) from error
    except httpx.HTTPError as error:
        raise _NoAnswerError(error) from error


def _no_answer(error: httpx.HTTPError, url: str) -> ShardmillError:
    return ShardmillError(f"The Prefect server at {shown_url(url)} {refusal(error)}")


def ended_for_wrong_usage(state: State) -> bool:
    """Whether a run failed for what `shardmill shard` calls wrong usage."""
    names = {kind.__name__ for kind in _kinds_of(UsageError)}
    words = (state.message or "").removeprefix("Flow run encountered an exception: ")
    return state.is_failed() and words.partition(":")[0] in names


def _kinds_of(error: type[Exception]) -> set[type[Exception]]:
    kinds = {error}
    for kind in error.__subclasses__():
        kinds |= _kinds_of(kind)
    return kinds
