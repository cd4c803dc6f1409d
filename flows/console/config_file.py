"""`--config FILE`: options from a YAML file."""

import yaml
from cyclopts import App
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict

from streaming_ext.errors import UsageError, one_line
from streaming_ext.storage.local_paths import local_path


def config_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Take what the command line does not give from the file that it names, as cyclopts calls it.

    Options stand at the top, or below the name of the command; what stands there goes first.

    Raises:
        UsageError: the file cannot be read, or is something else.
    """
    named = [
        argument.tokens[-1].value
        for argument in arguments
        if argument.name == "--config" and argument.tokens
    ]
    if not named:
        return
    source = f"--config {named[0]}"
    try:
        options = yaml.safe_load(local_path(named[0]).read_text("utf-8")) or {}
        below = options.get(commands[-1]) if isinstance(options, dict) else None
        for given in (below or {}, options):
            if not isinstance(given, dict):
                raise UsageError(f"{source}: expected options, such as `tokenizer: gpt2`.")
            values = {str(name): value for name, value in given.items() if value is not None}
            if "config" in values:
                raise UsageError(f"{source}: a file cannot name another one.")
            Dict(values, source=source, use_commands_as_keys=False)(app, commands, arguments)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{source}: cannot be read: {one_line(error)}.") from error
