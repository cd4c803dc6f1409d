"""A wrong option, in a line for the user."""

from collections.abc import Mapping

import pydantic
from cyclopts import CycloptsError, MissingArgumentError

from flows.terminal.visible import option_name
from streaming_ext.wrong_values import what_is_wrong
from tasks.core.estimate.config import EstimateConfig


def explain(error: CycloptsError, origins: Mapping[str, str]) -> str:
    """One line a wrong option, without the dress of the libraries.

    Args:
        error: of the command line.
        origins: where an option came from, if not from the command line.
    """
    cause = error.__cause__
    if isinstance(cause, pydantic.ValidationError):
        return explain_values(cause, origins)
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        if error.argument.tokens:
            return f"{error.argument.name} needs a value."
        command = " ".join(error.command_chain or ())
        name = error.argument.name
        if error.argument.index is not None:  # is given without its name
            name = name.removeprefix("--").upper()
        return f"{name} is needed. `shardmill {command} --help` tells all options."
    return str(error)


def explain_values(
    error: pydantic.ValidationError, origins: Mapping[str, str] | None = None
) -> str:
    """One line a value of a configuration that is not allowed."""
    lines = []
    for detail in error.errors():
        name = str(detail["loc"][0]) if detail["loc"] else ""
        field = EstimateConfig.model_fields.get(name)  # it has those of all configurations
        is_size = field is not None and "ByteSize" in str(field.annotation)
        option = "SOURCE" if name == "sources" else option_name(name)
        origin = (origins or {}).get(name)
        lines.append(
            f"{option}: {what_is_wrong(detail, is_size=is_size)}"
            + (f" ({origin})" if origin else "")
        )
    return "\n".join(lines)
