"""A wrong option, in a line for the user."""

from collections.abc import Mapping

import pydantic
from cyclopts import CycloptsError, MissingArgumentError

from flows.terminal.visible import option_name
from streaming_ext.plain_faults import in_words
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
    for fault in error.errors(include_url=False):
        name = str(fault["loc"][0]) if fault["loc"] else ""
        option = "SOURCE" if name == "sources" else option_name(name)
        field = EstimateConfig.model_fields.get(name)  # it has those of all configurations
        is_size = field is not None and "ByteSize" in str(field.annotation)
        line = (
            f"{option}: there is no such option"
            if fault["type"] == "extra_forbidden"
            else in_words(fault, name=option, is_size=is_size)
        )
        origin = (origins or {}).get(name)
        lines.append(line + (f" ({origin})" if origin else ""))
    return "\n".join(lines)
