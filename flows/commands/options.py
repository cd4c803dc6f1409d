"""Options that commands share, such as `--config FILE`, and errors about options in words."""

import json as to_json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pydantic
from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnknownOptionError,
)
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict
from pydantic_core import ErrorDetails

from flows.terminal.printing import (
    attach_handlers,
    detach_handlers,
    err,
    handlers,
    log,
    out,
    print_problem,
)
from streaming_ext.base.errors import UsageError, one_line, option_name, reason_of
from streaming_ext.base.plain_faults import in_words
from streaming_ext.store.locations import local_path

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OURS = [Path(__file__).parents[2] / name for name in ("flows", "tasks", "streaming_ext")]


class _Warnings(logging.Handler):
    """A handler that prints warnings of this project; errors end the command, which prints them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning, unless it comes from a library."""
        ours = any(Path(record.pathname).is_relative_to(folder) for folder in _OURS)
        if ours and record.levelno == logging.WARNING:
            print_problem(f"warning: {record.getMessage()}")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The options of printing.

    Parameters
    ----------
    quiet
        Print only errors.
    verbose
        Print the log of the libraries too, and the tracebacks of errors.
    log_file
        Append that log to a file, with times.
    json
        Print the result as one JSON document; all else goes to standard error.
    """

    heading: ClassVar[str] = "Global options"

    quiet: bool = False
    verbose: Annotated[bool, Parameter(name=("--verbose", "-v"))] = False
    log_file: Path | None = None
    json: bool = False

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply these options to everything that is printed in the block.

        Raises:
            UsageError: the log file is not writable.
        """
        root = logging.getLogger()
        before = out.quiet, err.quiet, root.level
        for handler in self._opened():
            handler.setLevel(logging.INFO)
            handler.setFormatter(logging.Formatter(_FORMAT))
            handlers.append(handler)
        out.quiet, err.quiet = self.quiet or self.json, self.quiet
        log.setLevel(logging.INFO)
        if self.verbose:
            root.setLevel(logging.INFO)
        attach_handlers()
        try:
            yield
        except Exception as error:
            log.error("%s", error, exc_info=self.verbose)
            raise
        finally:
            detach_handlers()
            out.quiet, err.quiet, level = before
            root.setLevel(level)

    def result(self, found: Any) -> None:
        """Print the result, if `--json` is given."""
        if self.json:
            print(to_json.dumps(found, indent=1, default=str))

    def _opened(self) -> Iterator[logging.Handler]:
        if self.log_file is not None:
            try:
                file = local_path(self.log_file)
                file.parent.mkdir(parents=True, exist_ok=True)
                yield logging.FileHandler(file, encoding="utf-8")
            except OSError as error:
                raise UsageError(
                    f"--log-file {self.log_file}: cannot be written: {reason_of(error)}."
                ) from error
        if self.verbose:
            yield logging.StreamHandler()
        elif not self.quiet:
            yield _Warnings()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConfigOptions(OutputOptions):
    """The options of printing, and a file with further options of the command.

    Parameters
    ----------
    config
        YAML file with any of these options; the command line overrides it.
    """

    config: Path | None = None


DEFAULT_OUTPUT = ConfigOptions()


def config_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill in options from the file of `--config`; cyclopts calls this.

    Options of the command line override the file. In the file, options below the name of the
    command override those at the top.

    Raises:
        UsageError: the file cannot be read, or does not hold options.
    """
    named = [token for each in arguments if each.name == "--config" for token in each.tokens]
    if not named:
        return
    import yaml

    file = named[-1].value
    source = f"--config {file}"
    try:
        options = yaml.safe_load(local_path(file).read_text("utf-8")) or {}
        of_command = options.get(commands[-1]) if isinstance(options, dict) else None
        for given in (of_command or {}, options):
            if not isinstance(given, dict) or "config" in given:
                raise UsageError(
                    f"{source}: expected options, and no `config:`, such as `tokenizer: gpt2`."
                )
            values = {str(name): value for name, value in given.items() if value is not None}
            Dict(values, source=source, use_commands_as_keys=False)(app, commands, arguments)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{source}: cannot be read: {one_line(error)}.") from error


# A Python parameter in a message: `pattern`, drop_last=False, or packing= alone; but no span of a
# path, a URL or a text.
_PARAMETER = re.compile(
    r"""`(?P<quoted>[a-z_]+)`|(?<![\w'"/.?&-])(?P<called>[a-z_]+)=(?P<value>'[^']*'|\w*)(?![\w/:'"])"""
)


class OptionNames:
    """The names of a command's fields on the command line: `--eot-token`, or SOURCES by position.

    Args:
        app: the command line.
        command: the name of the command, if there is one.
    """

    def __init__(self, app: App, command: Sequence[str]) -> None:
        known = bool(command) and command[0] in [*app] and not command[0].startswith("-")
        found = app[command[0]].assemble_argument_collection() if known else ()
        self._arguments = {each.name: each for each in found if each.show}

    def needed(self) -> list[str]:
        """Return the arguments that must be given."""
        return [self.shown(name) for name, each in self._arguments.items() if each.required]

    def shown(self, option: str) -> str:
        """Return the name of an argument in help texts."""
        argument = self._arguments.get(option)
        by_position = argument is not None and argument.index is not None
        return option.lstrip("-").upper() if by_position else option

    def put_into(self, message: str) -> str:
        """Replace Python parameters in a message by options with the same values."""

        def named(match: re.Match[str]) -> str:
            option, value = option_name(match["quoted"] or match["called"]), match["value"] or ""
            if option not in self._arguments:
                return match[0]
            if match["quoted"]:
                return f"`{option}`"
            if value in {"True", "False"}:
                return option if value == "True" else f"--no-{option.lstrip('-')}"
            return f"{option}={value}".replace("'", "").rstrip("=")

        return _PARAMETER.sub(named, message)


def explain(error: CycloptsError, names: OptionNames) -> str:
    """Return one line for each wrong option, with the names of the command's options."""
    if isinstance(error.__cause__, pydantic.ValidationError):
        return explain_values(error.__cause__, names)
    said = one_line(error)
    if isinstance(error, UnknownCommandError):
        said = said.partition(" Available commands:")[0]
    if isinstance(error, UnknownOptionError):
        given = (error.token.keyword or error.token.value).partition("=")[0]
        listed = (name for each in error.argument_collection for name in each.names)
        if longer := [name for name in listed if len(given) > 3 and name.startswith(given)]:
            said = f"Unknown option: {given}. Did you mean {' or '.join(longer)}?"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        keywords = [token.keyword for token in error.argument.tokens]
        if keyword := next(filter(None, [error.keyword, *keywords]), None):
            said = f"{keyword} needs a value"
        else:
            said = "\n".join(f"{name} is missing" for name in names.needed())
    command = " ".join(["shardmill", *(error.command_chain or ())])
    return f"{said}{'' if said.endswith(('.', '?')) else '.'} See `{command} --help`."


def explain_values(error: pydantic.ValidationError, names: OptionNames | None = None) -> str:
    """Return one line for each wrong value of a configuration, with the names of the options."""

    def named(fault: ErrorDetails) -> str:
        option = option_name(str(fault["loc"][0]))
        return names.shown(option) if names and fault["type"] == "missing" else option

    return "\n".join(
        in_words(fault, name=named(fault) if fault["loc"] else None)
        for fault in error.errors(include_url=False)
    )
