"""Checks of arguments, which turn the numbers of NumPy and torch into int and float.

States hold arguments. JSON and torch.load(weights_only=True) accept only plain values.
"""

from collections.abc import Callable
from dataclasses import field, fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from streaming_ext.base.errors import UsageError

MOST = 2**63 - 1


def plain_integer(value: Any) -> int | None:
    """Return a whole number of any type as an int, and None for anything else."""
    valid = isinstance(value, Integral) and not isinstance(value, bool)
    return int(value) if valid else None


def count(name: str, value: Any, *, least: int, most: int = MOST, optional: bool = False) -> Any:
    """Return a whole number within bounds as an int; if it is `optional`, None stays None.

    Raises:
        UsageError: naming the argument, the value and what is allowed.
    """
    plain = plain_integer(value)
    if (optional and value is None) or (plain is not None and least <= plain <= most):
        return plain
    low = plain is not None and plain < least
    bound = f"at least {least}" if low else f"a whole number up to {most:,}"
    raise UsageError(f"`{name}` must be {bound}, got {value!r}.")


def flag(name: str, value: Any) -> bool:
    """Return a truth value as a bool; refuse a word such as "no", which would count as true.

    Raises:
        UsageError: naming the argument and the value.
    """
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"`{name}` must be True or False, got {value!r}.")
    return bool(value)


def plain_real(value: Any) -> float | None:
    """Return a number of any type as an int or float, and None for anything else."""
    if isinstance(value, Real) and not isinstance(value, Integral | bool):
        return float(value)
    return plain_integer(value)


def positive(what: str) -> Callable[[str, Any], float]:
    """Return a check of a number above 0; messages call the number `what`."""

    def check(name: str, value: Any) -> float:
        real = plain_real(value)
        if real is None or not 0 < real <= MOST:  # also refuses NaN
            raise UsageError(f"`{name}` must be {what} above 0, got {value!r}.")
        return real

    return check


def checked(default: Any, check: Callable[[str, Any], Any]) -> Any:
    """Declare a dataclass field whose value `check_fields` replaces by the result of `check`.

    Args:
        default: the default of the field; not checked if it is None.
        check: the check, called with the name and the value of the field.
    """
    return field(default=default, metadata={"check": check})


def check_fields(settings: Any) -> None:
    """Check the fields of a frozen dataclass, in its `__post_init__`.

    Raises:
        UsageError: naming the first field that is wrong, its value and what is allowed.
    """
    for each in fields(settings):
        if (check := each.metadata.get("check")) is not None:
            value = getattr(settings, each.name)
            if value is not None or each.default is not None:
                object.__setattr__(settings, each.name, check(each.name, value))


def integer(least: int, most: int = MOST) -> Callable[[str, Any], Any]:
    """Return a check of a whole number."""
    return lambda name, value: count(name, value, least=least, most=most)


def one_of(*words: str) -> Callable[[str, Any], Any]:
    """Return a check that a value is one of some words."""

    def check(name: str, value: Any) -> Any:
        if value not in words:
            raise UsageError(f"`{name}` must be {' or '.join(map(repr, words))}, got {value!r}.")
        return value

    return check
