"""How Prefect runs each task of this project: nothing is cached, what may pass is tried again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import httpx
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import SettingsContext, get_settings_context
from pydantic import BaseModel

from streaming_ext.base.errors import ShardmillError, UsageError
from streaming_ext.store.patience import patience

M = TypeVar("M", bound=BaseModel)


@contextmanager
def changed_settings(values: Mapping[str, Any]) -> Iterator[None]:
    """Have other settings in the block, and in threads that get its context.

    In place of Prefect's `temporary_settings`, which reads all settings of the machine anew, from
    files and environment: a fifth of a second each time. What Prefect derives from a setting stays
    as it is, so this is not for the URL of the API.

    Args:
        values: such as `{"client.max_retries": 0}`, of the type that the setting has.
    """
    before = get_settings_context()
    settings = before.settings
    for name, value in values.items():
        settings = _changed(settings, name.split("."), value)
    with SettingsContext(profile=before.profile, settings=settings):
        yield


def _changed(model: M, path: list[str], value: Any) -> M:
    name, *rest = path
    held = getattr(model, name)  # a name that is not there is an error
    if rest:
        value = _changed(held, rest, value)
    return model.model_copy(update={name: value})


ANSWER_SECONDS = 5.0  # for clients that are made meanwhile: a server that hangs holds nobody up


@contextmanager
def one_attempt() -> Iterator[None]:
    """Send each request once and ignore a failure: Prefect's client tries for a minute."""
    settings = {"client.max_retries": 0, "api.request_timeout": ANSWER_SECONDS}
    with changed_settings(settings), suppress(httpx.HTTPError):
        yield


def retry_pauses(count: int) -> list[float]:
    """Seconds before each retry of a task: `retry_delay_seconds` of those that storage may fail.

    They go with the time-out of storage, so that whoever asks for little patience gets little.
    """
    try:
        factor = patience()
    except UsageError:  # reported when the first request is made
        factor = 1.0
    return [pause * factor for pause in (1, 5, 20, 60)[:count]]


def is_transient(task: Any, task_run: TaskRun, state: State) -> bool:
    """Prefect's question whether to try again: only where that may help, never while stopping."""
    try:
        state.result()
    except ShardmillError as error:
        return error.transient
    except Exception:  # noqa: BLE001  whatever else it was, trying again does not help
        return False
    return False


OURS: Final[dict[str, Any]] = {
    "retries": 3,
    "retry_delay_seconds": retry_pauses,
    "retry_condition_fn": is_transient,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
