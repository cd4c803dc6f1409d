"""A wrong option, in a line for the user."""

import pydantic
from cyclopts import CycloptsError, MissingArgumentError, UnusedCliTokensError

from flows.terminal.visible import option_name
from streaming_ext.errors import one_line
from streaming_ext.plain_faults import in_words


def explain(error: CycloptsError) -> str:
    """One line a wrong option."""
    if isinstance(error.__cause__, pydantic.ValidationError):
        return explain_values(error.__cause__)
    words = one_line(error)
    if isinstance(error, UnusedCliTokensError):
        words = f"{(error.unused_tokens or [''])[0]!r} is one argument too many"
    elif isinstance(error, MissingArgumentError) and (needed := error.argument) is not None:
        positional = needed.index is not None and not error.keyword
        name = needed.name.removeprefix("--").upper() if positional else needed.name
        words = f"{name} needs a value"
    command = "".join(f" {name}" for name in error.command_chain or ())
    return f"{words}. `shardmill{command} --help` tells all options."


def explain_values(error: pydantic.ValidationError) -> str:
    """One line a value of a configuration that is not allowed."""
    return "\n".join(
        in_words(fault, name=option_name(str(fault["loc"][0])) if fault["loc"] else None)
        for fault in error.errors(include_url=False)
    )
