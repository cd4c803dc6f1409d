"""The command `shardmill`, which loads as little as possible before it handles Ctrl+C."""

import io
import os
import signal
import sys
from typing import NoReturn, TextIO


def _stop_at_once(*_: object) -> NoReturn:
    os.write(2, b"shardmill: stopped.\n")
    os._exit(128 + signal.SIGINT)


def _null(mode: str) -> TextIO:
    """Open the null device, which gets the lowest free file descriptor."""
    stream: TextIO = open(os.devnull, mode)  # type: ignore[assignment]  # noqa: PTH123, SIM115
    os.set_inheritable(stream.fileno(), True)
    return stream


def _open_streams() -> None:
    """Open the standard streams that the caller closed, so that no file gets their descriptors.

    A terminal that is not UTF-8 shows other characters as escapes, on both streams of the output.
    """
    sys.stdin = sys.stdin or _null("r")
    sys.stdout = sys.stdout or _null("w")
    sys.stderr = sys.stderr or _null("w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    _open_streams()
    # An exception during imports would show a traceback, or a library would swallow it.
    before = signal.signal(signal.SIGINT, _stop_at_once)
    # No process multiplies matrices, so none needs threads for that.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from flows.commands.app import run

    signal.signal(signal.SIGINT, before)
    run(arguments)


if __name__ == "__main__":
    main()
