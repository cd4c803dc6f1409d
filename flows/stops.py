"""The signals that stop a command: each ends it in order, with an exit code of its own.

Python raises the exception wherever the main thread is. In a destructor or a callback of the
garbage collector it is printed and dropped; then the signal is sent again, until `handled`. Within
a library it may be wrapped in another exception: `stop_within` finds it.
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
EXIT_TERMINATED = 128 + signal.SIGTERM  # or cancelled in Prefect
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS = 0.25


class Stopped(BaseException):
    """A signal arrived; raised so that everything is cleaned up on the way out.

    Attributes:
        number: the number of the signal.
        exit_code: as a shell shows it.
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
            for stream in terminals:  # closed, a terminal answers each write with an error
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        # Not kept in a variable: its traceback would keep this frame, and the frame the exception.
        raise _repeated(Stopped(number))

    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def stop_within(error: BaseException) -> Stopped | None:
    """The stop that an exception is, wraps or was raised for; None if there is none."""
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
    """Delay a stop until the end of the block: libraries swallow exceptions in their imports."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def handled() -> None:
    """The stop arrived: do not send the signal again."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _repeated(stop: Stopped) -> Stopped:
    """The exception; if it is dropped before `handled`, its signal is sent again."""
    raised, number = weakref.ref(stop), stop.number

    def look(*_: object) -> None:
        if raised() is None:
            signal.raise_signal(number)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS, _AGAIN_SECONDS)
    return stop


def leave(code: int) -> NoReturn:
    """End the process with this code.

    If Prefect was used, its threads had a limited time before this to send what they hold: at the
    interpreter's exit they would try for hours to reach a server that is gone. And what cannot be
    written is tried again there, on a newer Python with another exit code.
    """
    written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # a full disk, or the reader has closed the pipe
            written = False
    if written and "prefect" not in sys.modules:
        sys.exit(code)
    os._exit(code)
