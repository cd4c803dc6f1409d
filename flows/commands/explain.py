"""A wrong option, in a line for the user."""

import pydantic
from cyclopts import CycloptsError


def explain(error: CycloptsError) -> str:
    """One line a wrong option, without the dress of the libraries."""
    cause = error.__cause__
    if not isinstance(cause, pydantic.ValidationError):
        return str(error)
    return "\n".join(
        f"--{'.'.join(str(part) for part in detail['loc'][:1]).replace('_', '-')}: "
        f"{detail['msg'].removeprefix('Value error, ')}, got {detail['input']!r}"
        for detail in cause.errors()
    )
