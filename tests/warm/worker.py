"""A command's first worker process as a fork of the command, which has loaded what a worker loads.

It reads jobs, answers, and ends as one that was started anew does, and is a child of the command.
"""

import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from tasks.core.workers import pool

LOOKS = 100


def fork_workers() -> None:
    """Have workers of this process be forks of it, where they are started by its only thread."""
    vars(pool)["subprocess"] = SimpleNamespace(Popen=_ForkedWorker, PIPE=subprocess.PIPE)


class _ForkedWorker(subprocess.Popen[bytes]):
    """`python -P -m MODULE ARGUMENTS...`, forked from this process unless that has threads."""

    def _execute_child(self, *arguments: Any) -> None:
        """What `Popen` calls with the ends of its pipes among others; see CPython's source."""
        if not _is_alone():
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        from flows.forked import fork

        words, environment = arguments[0], arguments[6]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = arguments[10:16]
        streams = (p2cread, c2pwrite, errwrite)
        self.pid = fork(lambda: _be(words, environment, streams), keep=streams)
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self._child_created = True


def _is_alone() -> bool:
    """Whether this process has a single thread; one that was joined takes a moment to be gone."""
    for _ in range(LOOKS):
        if len(os.listdir("/proc/self/task")) == 1:  # noqa: PTH208  (only how many)
            return True
        if threading.active_count() > 1:
            break
        time.sleep(0.001)
    return False


def _be(words: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> None:
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    _, _, _, module, *rest = words
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
