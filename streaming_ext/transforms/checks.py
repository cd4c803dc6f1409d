"""What a step may be told."""

from collections.abc import Sequence
from typing import Any

from streaming_ext.errors import UsageError


def names_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Names of columns; of a single one too.

    Raises:
        UsageError: there are none.
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    require(target_columns=bool(names), got="none", allowed="one name or more")
    return names


def require(*, got: Any, allowed: str, **named: bool) -> None:
    """Refuse a value that is not allowed.

    Raises:
        UsageError: naming it.
    """
    for name, fits in named.items():
        if not fits:
            raise UsageError(f"`{name}` must be {allowed}, got {got}.")
