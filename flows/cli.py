"""The command `shardmill`: loads as little as it can before Ctrl+C is taken care of."""

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
    # Nothing here multiplies matrices, nor does a worker: no threads that wait for it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from flows.commands.app import run

    signal.signal(signal.SIGINT, before)
    run(arguments)


if __name__ == "__main__":
    main()
