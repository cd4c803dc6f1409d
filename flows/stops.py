"""The signals that stop a command: each ends it in order, with an exit code of its own.

Python raises where the main thread happens to be. Where that is a destructor or a callback of the
garbage collector, the exception is printed and dropped, and the command would go on as if nobody
had stopped it: an exception that is gone, and that nobody took, is raised again. Where it is in the
middle of what a library does, that may wrap it in an exception of its own: `stop_within` finds it.
"""

import os
import signal
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

EXIT_FAILED = 1  # files failed, or a dataset is not sound
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM  # or cancelled in Prefect
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS = 0.25


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


class Interrupted(KeyboardInterrupt):
    """Ctrl+C; unlike its parent it can be followed."""


def stop_by_signals() -> None:
    """Have SIGTERM, and SIGHUP unless it is ignored as under nohup, raise `Stopped`.

    Ctrl+C raises `Interrupted` where it raised `KeyboardInterrupt`. All are raised until `taken`.
    """
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]  # of a closed one none is

    def stop(number: int, _: object) -> NoReturn:
        if number == signal.SIGHUP:
            _write_nowhere(terminals)
        # In no variable: the frame would hold it by its own traceback.
        raise _followed(Interrupted() if number == signal.SIGINT else Stopped(number), number)

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)


def stop_within(error: BaseException) -> KeyboardInterrupt | Stopped | None:
    """The stop that an exception is, wraps, or came of; None where none is behind it."""
    looked_at: set[int] = set()
    behind: list[BaseException | None] = [error]
    while behind:
        each = behind.pop()
        if each is None or id(each) in looked_at:
            continue
        if isinstance(each, KeyboardInterrupt | Stopped):
            return each
        looked_at.add(id(each))
        behind += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            behind += each.exceptions
    return None


@contextmanager
def stops_held() -> Iterator[None]:
    """Have a stop wait for the end of the block: libraries print one amid their imports."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def taken() -> None:
    """Say that the stop arrived: from here on nothing is raised again."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _followed(stop: BaseException, number: int) -> BaseException:
    """The exception; its signal is sent again when it is gone before `taken`."""
    raised = weakref.ref(stop)

    def look(*_: object) -> None:
        if raised() is None:
            signal.raise_signal(number)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS, _AGAIN_SECONDS)
    return stop


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
