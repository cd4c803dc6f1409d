"""Children of a command that are forks of it: what it has loaded, they need not load."""

import os
import signal
from collections.abc import Callable, Collection

from flows.stops import STOPS


def fork(work: Callable[[], object], *, keep: Collection[int]) -> int:
    """Have a child do some work, and end; returns its process id.

    The child has a process group of its own and ignores Ctrl+C and a terminal's end; it reads and
    writes nothing but `keep`. It is to end when its parent does, which a pipe tells it.

    Args:
        work: of the child; what it raises ends the child with exit code 1.
        keep: file descriptors that stay open in it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # the parent's handlers are not its
    try:
        pid = os.fork()
        if not pid:
            _be(work, keep, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _be(work: Callable[[], object], keep: Collection[int], mask: Collection[int]) -> None:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.setpgid(0, 0)  # Ctrl+C is not for it; a session of its own would void its niceness
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  (numbers)
            # Not closed: a log file of the command would write into what is opened in its place.
            if descriptor > 2 and descriptor != nothing and descriptor not in keep:
                os.dup2(nothing, descriptor, inheritable=False)
        work()
        code = 0
    finally:
        os._exit(code)  # never back into the command, whose process this is no more
