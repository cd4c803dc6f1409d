"""What a step may be told."""

from collections.abc import Sequence
from typing import Any

from streaming_ext.arguments.kinds import plain_whole
from streaming_ext.errors import UsageError


def names_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Names of columns; of a single one too.

    Raises:
        UsageError: there are none.
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    require(target_columns=bool(names), got="none", allowed="one name or more")
    return names


def whole(*, least: int, **named: Any) -> int:
    """A whole number, given by its name, as a plain one.

    Raises:
        UsageError: it is none, or too low.
    """
    ((name, value),) = named.items()
    found = plain_whole(value)
    if found is None:
        raise UsageError(f"`{name}` must be a whole number, {least} or more, got {value!r}.")
    require(**{name: found >= least}, got=found, allowed=f"{least} or more")
    return found


def any_whole(**named: Any) -> int:
    """A whole number, given by its name, as a plain one: of any size.

    Raises:
        UsageError: it is none.
    """
    ((name, value),) = named.items()
    found = plain_whole(value)
    if found is None:
        raise UsageError(f"`{name}` must be a whole number, got {value!r}.")
    return found


def require(*, got: Any, allowed: str, **named: bool) -> None:
    """Refuse a value that is not allowed.

    Raises:
        UsageError: naming it.
    """
    for name, fits in named.items():
        if not fits:
            raise UsageError(f"`{name}` must be {allowed}, got {got}.")
