"""The command `shardmill`: loads as little as it can before Ctrl+C is taken care of."""

import gc
import os
import signal
from typing import NoReturn


def _stop_at_once(*_: object) -> NoReturn:
    os.write(2, b"shardmill: stopped.\n")
    os._exit(128 + signal.SIGINT)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    # An exception amid imports would show as a traceback, or be swallowed by one of them.
    before = signal.signal(signal.SIGINT, _stop_at_once)
    gc.disable()  # what is loaded stays: looking through it again and again takes a seventh
    from flows.commands.app import run

    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, before)
    run(arguments)


if __name__ == "__main__":
    main()
