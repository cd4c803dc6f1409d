"""Prefect's settings, changed for a while."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from prefect.context import SettingsContext, get_settings_context
from pydantic import BaseModel

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
