"""How Prefect runs each task of this project: nothing is cached, what may pass is tried again."""

from collections.abc import Callable
from typing import Any, Final, TypedDict

from prefect.cache_policies import NO_CACHE, CachePolicy
from prefect.client.schemas.objects import State, TaskRun

from streaming_ext.errors import ShardmillError, UsageError
from streaming_ext.storage.patience import patience


def retry_pauses(count: int) -> list[float]:
    """Seconds before each retry of a task: `retry_delay_seconds` of those that storage may fail.

    They go with the time-out of storage, so that whoever asks for little patience gets little.
    """
    try:
        factor = patience()
    except UsageError:  # told when the first request is made
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


class _Settings(TypedDict):
    retry_condition_fn: Callable[[Any, TaskRun, State], bool]
    cache_policy: CachePolicy
    persist_result: bool


OURS: Final[_Settings] = {
    "retry_condition_fn": is_transient,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
