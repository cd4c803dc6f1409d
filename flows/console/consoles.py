"""The terminal of a command: results on standard output, all else on standard error.

The work goes on where nobody reads either of them any more, as behind `| head`, and the exit code
tells how it ended. A result that cannot be written for another reason, as on a full disk, is an
error; what goes to standard error is lost then.
"""

import io
import logging
import os
import sys
from typing import IO

from rich.console import Console

from flows.terminal.visible import visible
from streaming_ext.errors import StorageError, reason_of


class _Terminal(Console):
    """Rich's ends the process where nobody reads it."""

    def on_broken_pipe(self) -> None:
        """Print nowhere from now on."""
        _lead_nowhere(self.file)
        del self._buffer[:]  # else it is printed with what comes next

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            self.on_broken_pipe()
            if not self.stderr:
                raise _unwritten(error) from error


def write_result(text: str) -> None:
    """Write to standard output as it is.

    Raises:
        StorageError: it cannot be written, for another reason than that nobody reads it.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        _lead_nowhere(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise _unwritten(error) from error


def _lead_nowhere(stream: IO[str]) -> None:
    """Have a standard stream lead nowhere, what it still holds too."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


def _unwritten(error: OSError) -> StorageError:
    return StorageError(
        f"Cannot write to standard output: {reason_of(error)}. Have it go elsewhere."
    )


out = _Terminal(highlight=False)
err = _Terminal(stderr=True, highlight=False)
log = logging.getLogger("shardmill")
log.addHandler(logging.NullHandler())
log.propagate = False  # errors are told once: the root logger may be Prefect's, with a console


def tell(problem: str) -> None:
    """Print an error; it may hold names from files of unknown origin."""
    err.print(visible(f"shardmill: {problem}", keep="\n"), markup=False, soft_wrap=True)


def write_anything() -> None:
    """Have characters that the encoding of a stream lacks written as escapes, not raised.

    A handler that is chosen (`PYTHONIOENCODING=ascii:replace`) stays.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper) or stream.encoding.lower() in {"utf-8", "utf8"}:
            continue
        if stream.errors in {"strict", "surrogateescape"}:
            stream.reconfigure(errors="backslashreplace")
