"""`--config FILE`: options from a YAML file."""

from pathlib import Path

import yaml
from cyclopts import App
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Yaml

from streaming_ext.errors import UsageError


def read_config_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill what the command line does not say from the YAML file that it names."""
    for argument in arguments:
        if argument.name == "--config" and argument.tokens:
            file = Path(argument.tokens[-1].value)
            try:
                Yaml(file, must_exist=True, use_commands_as_keys=False)(app, commands, arguments)
            except (OSError, yaml.YAMLError) as error:
                raise UsageError(f"--config {file}: cannot be read: {error}") from error
