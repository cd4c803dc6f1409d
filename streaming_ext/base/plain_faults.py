"""What pydantic found wrong with a value: field, value and what is allowed."""

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_MAX_FAULTS = 3  # of one value
_MAX_SHOWN = 60  # characters of what came

# Kind of fault -> what is expected; `{name}` is taken from the fault's own context.
_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "list_type": "a list",
    "byte_size": "a size such as 64MiB",
    "byte_size_unit": "a size such as 64MiB",
    "dict_type": "a table of fields",
    "model_type": "a table of fields",
    "dataclass_type": "a table of fields",
    "dataclass_exact_type": "a table of fields",
    "model_attributes_type": "a table of fields",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "a text like {pattern}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "too_short": "{min_length} or more of them",
    "too_long": "{max_length} or fewer of them",
    "string_too_short": "{min_length} or more characters",
    "string_too_long": "{max_length} or fewer characters",
}
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
_MISSING = {"missing", "missing_argument", "missing_keyword_only_argument"}


def plain_faults(error: ValidationError) -> str:
    """The first few faults, each with the field that it is in."""
    faults = error.errors(include_url=False)
    shown = "; ".join(in_words(fault) for fault in faults[:_MAX_FAULTS])
    more = len(faults) - _MAX_FAULTS
    return f"{shown}; and {more} more" if more > 0 else shown


def in_words(fault: ErrorDetails, *, name: str | None = None) -> str:
    """One fault with the field that it is in.

    Args:
        fault: from pydantic.
        name: of the field, if its user calls it something else.
    """
    field = "" if not fault["loc"] else name or ".".join(str(step) for step in fault["loc"])
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in _MISSING:
        return f"{field} is missing"
    if kind in _UNKNOWN:
        return f"{field} is no field that is known here"
    if kind == "json_invalid":
        return f"it is not whole JSON: {context['error']}"
    at = f"{field}: " if field else ""
    if kind == "value_error":  # raised by our own code, in our own words
        return f"{at}{context['error']}"
    came = _shown(fault["input"])
    if kind in _EXPECTED:
        return f"{at}expected {_EXPECTED[kind].format(**context)}, got {came}"
    return f"{at}{came} is not what can stand there"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ..."
