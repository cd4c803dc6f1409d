"""The terminal of a command: results on standard output, everything else on standard error."""

import logging

from rich.console import Console

from flows.terminal.visible import visible

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
log = logging.getLogger("shardmill")
log.propagate = False  # the root logger may be Prefect's, which would print an error again
handlers: list[logging.Handler] = [logging.NullHandler()]  # of the command
# Once Prefect is loaded, its loggers pass nothing on to the root.
_NAMES = ("prefect", "prefect.flow_runs", "prefect.task_runs")
_LOGGERS = [logging.getLogger(), log, *map(logging.getLogger, _NAMES)]


def print_problem(text: str) -> None:
    """Print a problem; the text may hold names from files of unknown origin."""
    err.print(visible(f"shardmill: {text}", keep="\n"), markup=False, soft_wrap=True)


def attach_handlers() -> None:
    """Send the log to the command's handlers; again after Prefect has set up logging."""
    for logger in _LOGGERS:
        if logger is _LOGGERS[0] or not logger.propagate:  # otherwise its parent has them
            for handler in handlers:
                logger.addHandler(handler)


def detach_handlers() -> None:
    """Close the command's handlers."""
    while handlers:
        handler = handlers.pop()
        for logger in _LOGGERS:
            logger.removeHandler(handler)
        handler.close()
