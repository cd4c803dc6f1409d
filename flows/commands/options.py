"""What all commands share: options of printing, `--config FILE`, and wrong options in words."""

import json as to_json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pydantic
import yaml
from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, UnusedCliTokensError
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict

from flows.terminal.consoles import err, log, out, tell
from flows.terminal.visible import option_name
from streaming_ext.base.errors import UsageError, one_line, reason_of
from streaming_ext.base.plain_faults import in_words
from streaming_ext.store.locations import local_path

_FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Loggers that pass nothing on to the root once Prefect is loaded.
_OF_PREFECT = ("prefect", "prefect.flow_runs", "prefect.task_runs")
_OURS = [Path(__file__).parents[2] / name for name in ("flows", "tasks", "streaming_ext")]


class _Warnings(logging.Handler):
    """Tells what the project itself warns of, whoever's logger it went to; errors end a command."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is such a warning: a library's are for the log."""
        ours = any(Path(record.pathname).is_relative_to(room) for room in _OURS)
        return ours and record.levelno == logging.WARNING

    def emit(self, record: logging.LogRecord) -> None:
        """Print it; the progress bar moves below it."""
        tell(f"warning: {record.getMessage()}")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What to print.

    Parameters
    ----------
    quiet
        Print nothing but errors.
    verbose
        Print what the libraries log too, and tracebacks of errors.
    log_file
        Add all of that to a file, with times.
    json
        Print the result as one JSON document; all else goes to standard error.
    """

    heading: ClassVar[str] = "Printing"

    quiet: bool = False
    verbose: bool = False
    log_file: Path | None = None
    json: bool = False

    @contextmanager
    def applied(self) -> Iterator[Callable[[], None]]:
        """Print as asked within the block.

        What is yielded is to be called once Prefect is loaded, which sets up logging anew.

        Raises:
            UsageError: the log file cannot be written.
        """
        root, handlers = logging.getLogger(), self._opened()
        loggers = [root, log, *map(logging.getLogger, _OF_PREFECT)]
        was = out.quiet, err.quiet, root.level
        out.quiet, err.quiet = self.quiet or self.json, self.quiet
        log.setLevel(logging.INFO)
        if self.verbose:
            root.setLevel(logging.INFO)

        def listen() -> None:
            for logger in loggers:
                if logger is root or not logger.propagate:  # else its parent has it
                    logger.handlers.extend(set(handlers) - set(logger.handlers))

        listen()
        try:
            yield listen
        except Exception as error:
            log.error("%s", error, exc_info=self.verbose)
            raise
        finally:
            for handler in handlers:
                for logger in loggers:
                    logger.removeHandler(handler)
                handler.close()
            out.quiet, err.quiet = was[:2]
            root.setLevel(was[2])

    def result(self, found: Any) -> None:
        """Print the result as JSON, where that is asked for."""
        if self.json:
            print(to_json.dumps(found, indent=1, default=str))

    def _opened(self) -> list[logging.Handler]:
        handlers: list[logging.Handler] = []
        if self.log_file is not None:
            try:
                file = local_path(self.log_file)
                file.parent.mkdir(parents=True, exist_ok=True)
                handlers.append(logging.FileHandler(file, encoding="utf-8"))
            except OSError as error:
                raise UsageError(
                    f"--log-file {self.log_file}: cannot be written: {reason_of(error)}."
                ) from error
        if self.verbose:
            handlers.append(logging.StreamHandler())
        for handler in handlers:
            handler.setLevel(logging.INFO)
            handler.setFormatter(logging.Formatter(_FORM))
        if not self.quiet and not self.verbose:
            handlers.append(_Warnings())
        return handlers


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConfigOptions(OutputOptions):
    """The same for commands whose options may stand in a file.

    Parameters
    ----------
    config
        YAML file with any of these options; what the command line says goes first.
    """

    heading: ClassVar[str] = "Execution"

    config: Path | None = None


DEFAULT_OUTPUT = ConfigOptions()


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
