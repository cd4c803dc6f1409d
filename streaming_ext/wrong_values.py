"""What is wrong with a value, in plain words instead of the validator's."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

from streaming_ext.units import size_text

_WHOLE = "must be a whole number"
_NUMBER = "must be a number"
_SIZE = "must be a size such as 64MiB"
_WORDS: Mapping[str, str] = {
    "missing": "is needed",
    "extra_forbidden": "there is no such option",
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "string_too_short": "must not be empty",
    "byte_size": _SIZE,
    "byte_size_unit": _SIZE,
}
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def what_is_wrong(detail: ErrorDetails, *, is_size: bool = False) -> str:
    """What is allowed and what came: `must be greater than 0, got -1`.

    Args:
        detail: one of a `ValidationError`.
        is_size: the value is a number of bytes.
    """
    words = _what_is_allowed(detail, size_text if is_size else str)
    return words if detail["type"] == "missing" else f"{words}, got {detail['input']!r}"


def _what_is_allowed(detail: ErrorDetails, shown: Callable[[Any], str]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _WORDS:
        return _WORDS[kind]
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = context[name]
        if kind == "less_than_equal" and shown is size_text:  # the largest size has all bits set
            return f"must be less than {shown(bound + 1)}"
        return f"must be {words} {shown(bound)}"
    if kind == "literal_error":
        return f"must be {context['expected'].replace(chr(39), '')}"
    if kind == "too_short":
        return f"needs at least {context['min_length']}"
    return detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
