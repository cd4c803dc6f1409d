"""The command `shardmill`: loads as little as possible before it handles Ctrl+C."""

import os
import signal
import sys
from typing import NoReturn, TextIO


def _stop_at_once(*_: object) -> NoReturn:
    os.write(2, b"shardmill: stopped.\n")
    os._exit(128 + signal.SIGINT)


def _null(mode: str) -> TextIO:
    """The null device; it takes the lowest number that is free."""
    stream: TextIO = open(os.devnull, mode)  # type: ignore[assignment]  # noqa: PTH123, SIM115
    os.set_inheritable(stream.fileno(), True)
    return stream


def _open_streams() -> None:
    """Open the standard streams that the caller closed: the next files would take their numbers."""
    sys.stdin = sys.stdin or _null("r")
    sys.stdout = sys.stdout or _null("w")
    sys.stderr = sys.stderr or _null("w")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    _open_streams()
    # An exception during imports would print a traceback, or be swallowed by a library.
    before = signal.signal(signal.SIGINT, _stop_at_once)
    # No process multiplies matrices, so none needs the threads for it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from flows.commands.app import run

    signal.signal(signal.SIGINT, before)
    run(arguments)


if __name__ == "__main__":
    main()
