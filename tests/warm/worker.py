"""Child processes of a command as forks, which have loaded what these load.

They read jobs, answer, and end as those that were started anew do, and are children of the command.
"""

import os
import runpy
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, NoReturn

from streaming_ext import own_module
from tests.warm.nursery import Nursery


def fork_children() -> None:
    """Have own modules that this process starts be forks; it has no thread yet."""
    _ForkedModule.nursery = Nursery(_be_module)
    vars(own_module)["subprocess"] = SimpleNamespace(Popen=_ForkedModule)


class _ForkedModule(subprocess.Popen[bytes]):
    """A module of ours, forked from this process's nursery."""

    nursery: Nursery

    def _execute_child(self, *arguments: Any) -> None:
        """What `Popen` calls with the ends of its pipes among others; see CPython's source."""
        request = {
            "words": arguments[0],
            "environment": dict(arguments[6] or os.environ),
            "new_session": arguments[21],
        }
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = arguments[10:16]
        self.pid = self.nursery.fork(request, (p2cread, c2pwrite, errwrite, *arguments[4]))
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self._child_created = True


def _be_module(request: dict[str, Any]) -> NoReturn:
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    _, _, _, module, *rest = request["words"]
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()
