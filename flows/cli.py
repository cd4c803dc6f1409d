"""The command `shardmill`: loads as little as it can before Ctrl+C is taken care of."""

import gc
import os
import signal
import sys
from typing import NoReturn


def _stop_at_once(*_: object) -> NoReturn:
    os.write(2, b"shardmill: stopped.\n")
    os._exit(128 + signal.SIGINT)


def open_missing_streams() -> None:
    """Have closed standard streams, as of daemons, lead nowhere.

    Else the first files that are opened take their places, and are closed or written to as such.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number)  # of children too, which a copy is
            if nothing != number:
                os.close(nothing)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    open_missing_streams()
    # An exception amid imports would show as a traceback, or be swallowed by one of them.
    before = signal.signal(signal.SIGINT, _stop_at_once)
    # Nothing here multiplies matrices, nor does a worker: no threads that wait for it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()  # what is loaded stays: looking through it again and again takes a seventh
    from flows.commands.app import run

    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, before)
    run(arguments)


if __name__ == "__main__":
    main()
