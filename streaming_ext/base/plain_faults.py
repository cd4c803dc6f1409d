"""Pydantic's errors in one line: the field, the rule that it breaks, and the value."""

import re
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_MAX_FAULTS = 3  # of one value
_MAX_SHOWN = 60  # characters of a value


def plain_faults(error: ValidationError) -> str:
    """Describe the first few faults, each with its field."""
    faults = error.errors(include_url=False)
    shown = "; ".join(in_words(fault) for fault in faults[:_MAX_FAULTS])
    more = len(faults) - _MAX_FAULTS
    return f"{shown}; and {more} more" if more > 0 else shown


def in_words(fault: ErrorDetails, *, name: str | None = None) -> str:
    """Describe one fault with its field.

    Args:
        fault: a fault from pydantic.
        name: the name of the field for its user; None for its own name.
    """
    field = "" if not fault["loc"] else name or ".".join(str(step) for step in fault["loc"])
    kind, context = fault["type"], fault.get("ctx", {})
    if kind.startswith("missing"):
        return f"{field} is missing"
    if kind.startswith(("extra", "unexpected")):
        return f"{field} is no field that is known here"
    if kind == "json_invalid":
        return f"it is not whole JSON: {context['error']}"
    at = f"{field}: " if field else ""
    if kind == "value_error":  # raised by our own code, in our own words
        return f"{at}{context['error']}"
    came = _shown(fault["input"])
    words = re.sub(r"^\w+ should ", "must ", fault["msg"].replace(" after validation", ""))
    words = words.replace("valid tuple", "list")
    if kind.startswith("byte_size"):
        words = "must be a size such as 64MiB"
    return f"{at}{words}, got {came}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ..."
