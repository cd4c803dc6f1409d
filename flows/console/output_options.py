"""What a command prints, and where: `--quiet`, `--verbose`, `--log-file`, `--json`."""

import json as to_json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cyclopts import Parameter

from flows.console.consoles import err, log, out, tell
from streaming_ext.errors import UsageError, reason_of
from streaming_ext.storage.local_paths import local_path

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
