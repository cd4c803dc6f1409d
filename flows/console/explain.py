"""A wrong option, in a line for the user."""

from collections.abc import Mapping

import pydantic
from cyclopts import (
    Argument,
    ArgumentOrderError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnusedCliTokensError,
)

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
        return _missing(error, error.argument)
    if isinstance(error, ArgumentOrderError | RepeatArgumentError | UnusedCliTokensError):
        return _misplaced(error)
    argument = getattr(error, "argument", None)
    if argument is not None and (
        origin := origins.get(argument.name.removeprefix("--").replace("-", "_"))
    ):
        return f"{argument.name}: expected one value ({origin})"
    return str(error)


def _misplaced(error: ArgumentOrderError | RepeatArgumentError | UnusedCliTokensError) -> str:
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} is given twice, and takes one value."
    if isinstance(error, UnusedCliTokensError):
        extra, command = (error.unused_tokens or [""])[0], " ".join(error.command_chain or ())
        return (
            f"{extra!r} is one argument too many. `shardmill {command} --help` tells all options."
        )
    before = error.prior_positional_or_keyword_supplied_as_keyword_arguments
    named = ", ".join(argument.name for argument in before)
    return f"{error.token!r} needs the name of its option, as {named} has its."


def _missing(error: MissingArgumentError, argument: Argument) -> str:
    if error.keyword or argument.tokens:
        return f"{error.keyword or argument.name} needs a value."
    command = " ".join(error.command_chain or ())
    needed = [argument]
    if error.app is not None and not error.unused_tokens:  # nothing at all is given
        needed = [each for each in error.app.assemble_argument_collection() if _is_needed(each)]
    *most, last = map(_name, needed)
    told = f"{', '.join(most)} and {last} are" if most else f"{last} is"
    return f"{told} needed. `shardmill {command} --help` tells all options."


def _is_needed(argument: Argument) -> bool:
    return argument.required and argument.show


def _name(argument: Argument) -> str:
    """As help has it: `--output`, or `DATASET` where its position says which it is."""
    return argument.name if argument.index is None else argument.name.removeprefix("--").upper()


def explain_values(
    error: pydantic.ValidationError, origins: Mapping[str, str] | None = None
) -> str:
    """One line a value of a configuration that is not allowed."""
    lines = []
    for fault in error.errors(include_url=False):
        name = str(fault["loc"][0]) if fault["loc"] else ""
        option = "SOURCES" if name == "sources" else option_name(name)
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
