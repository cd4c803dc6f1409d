"""`shardmill trace` as a function with the options of the command line."""

from typing import Any

from pydantic import ValidationError

from flows.commands.options import explain_values
from flows.commands.trace import TraceConfig
from flows.commands.trace import trace as run
from streaming_ext.base.errors import UsageError


def trace(path: str, *more: str, **options: Any) -> int:
    try:
        config = TraceConfig(path=path, more=more, **options)
    except ValidationError as error:
        raise UsageError(explain_values(error)) from error
    return run(config)
