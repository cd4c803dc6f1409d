"""The signals that stop a command in an orderly way, each with its own exit code.

Python raises the exception of a signal wherever the main thread is. If that is in a destructor or
in a callback of the garbage collector, Python prints and drops the exception; then the signal is
sent again, until `handled` is called. A library may wrap the exception in another one;
`stop_within` finds it.
"""

import os
import signal
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

EXIT_FAILED = 1  # parts failed, or a dataset is damaged
EXIT_USAGE = 2
EXIT_TERMINATED = 128 + signal.SIGTERM  # also if the run was cancelled in Prefect
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS = 0.25


class Stopped(BaseException):
    """The exception of a signal, raised so that everything is cleaned up on the way out.

    Attributes:
        number: the number of the signal.
        exit_code: the exit code that shells use for this signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number


def stop_by_signals() -> None:
    """Raise `Stopped` on Ctrl+C, SIGTERM and SIGHUP, unless they are ignored as under nohup."""
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def stop(number: int, _: object) -> NoReturn:
        if number == signal.SIGHUP:
            for stream in terminals:  # every write to a closed terminal is an error
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        # A variable would make a cycle: the traceback holds this frame, which holds the exception.
        raise _repeated(Stopped(number))

    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def stop_within(error: BaseException) -> Stopped | None:
    """Return the `Stopped` that an exception is, contains or follows; None if there is none."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, Stopped):
            return each
        seen.add(id(each))
        left += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
    return None


@contextmanager
def stops_held() -> Iterator[None]:
    """Delay a stop until the block ends, because some libraries swallow exceptions in imports."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def handled() -> None:
    """Note that the stop arrived, so that the signal is not sent again."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _repeated(stop: Stopped) -> Stopped:
    """Return the exception; send its signal again if it is dropped before `handled` is called."""
    raised, number = weakref.ref(stop), stop.number

    def look(*_: object) -> None:
        if raised() is None:
            signal.raise_signal(number)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS, _AGAIN_SECONDS)
    return stop


def leave(code: int) -> NoReturn:
    """End the process with an exit code, if needed without the interpreter's exit.

    At the interpreter's exit, Prefect's threads would try for hours to reach a server that is gone;
    they already had a limited time to send their records. The exit would also flush the streams
    again, and a newer Python would change the exit code if that fails.
    """
    written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the disk is full, or the reader has closed the pipe
            written = False
    if written and "prefect" not in sys.modules:
        sys.exit(code)
    os._exit(code)
