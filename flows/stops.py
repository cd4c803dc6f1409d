"""The signals that stop a command: each ends it in order, with an exit code of its own."""

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn


class Stopped(BaseException):
    """A signal arrived; raised so that everything is cleaned up on the way out.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What a shell shows for it."""
        return 128 + self.number


def stop_by_signals() -> None:
    """Have SIGTERM, and SIGHUP unless it is ignored as under nohup, raise `Stopped`."""
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]  # of a closed one none is

    def stop(number: int, _: object) -> NoReturn:
        if number == signal.SIGHUP:
            _write_nowhere(terminals)
        raise Stopped(number)

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, stop)


def _write_nowhere(streams: list[int]) -> None:
    """A terminal that was closed answers each write with an error."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nothing, stream)
    os.close(nothing)


def leave(code: int) -> NoReturn:
    """End the process; where Prefect was used, without waiting for its threads.

    What they hold is drained, within bounds, before: at the interpreter's exit they would try for
    hours to reach a server that is gone.
    """
    if "prefect" not in sys.modules:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)
