"""Arguments without a name: a command takes those that its usage shows, and no more."""

from cyclopts import App
from cyclopts.argument import ArgumentCollection

from streaming_ext.errors import UsageError

# Fields of configurations that may be given by their place; others need their name.
_PLACES = {
    "shard": ("--sources",),
    "extend": ("--dataset", "--sources"),
    "plan": ("--sources",),
    "export": ("--format", "--dataset"),
    "copy": ("--dataset", "--output"),
    "merge": ("--datasets",),
    "import": ("--format", "--sources"),
    "subset": ("--dataset",),
}


def require_names(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse a value that is of an option only because of its place, as cyclopts calls it.

    Raises:
        UsageError: there is one.
    """
    command = commands[-1] if commands else ""
    if command not in _PLACES:
        return
    for argument in arguments:
        if argument.name not in _PLACES[command]:
            for token in argument.tokens:
                if token.keyword is None:
                    raise UsageError(too_many(token.value, command))


def too_many(value: str, command: str) -> str:
    """What to tell of an argument that a command has no place for."""
    return f"{value!r} is one argument too many. `shardmill {command} --help` tells all options."
