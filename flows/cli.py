"""The command `shardmill`: loads as little as possible before it handles Ctrl+C."""

import os
import signal
from typing import NoReturn


def _stop_at_once(*_: object) -> NoReturn:
    os.write(2, b"shardmill: stopped.\n")
    os._exit(128 + signal.SIGINT)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    # An exception during imports would print a traceback, or be swallowed by a library.
    before = signal.signal(signal.SIGINT, _stop_at_once)
    # No process multiplies matrices, so none needs the threads for it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from flows.commands.app import run

    signal.signal(signal.SIGINT, before)
    run(arguments)


if __name__ == "__main__":
    main()
