"""The terminal of a command: results on standard output, all else on standard error."""

import logging

from rich.console import Console

from flows.terminal.visible import visible

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
log = logging.getLogger("shardmill")
log.addHandler(logging.NullHandler())
log.propagate = False  # errors are told once: the root logger may be Prefect's, with a console


def tell(problem: str) -> None:
    """Print an error; it may hold names from files of unknown origin."""
    err.print(visible(f"shardmill: {problem}", keep="\n"), markup=False, soft_wrap=True)
