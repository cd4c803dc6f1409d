"""Child processes of a command as forks that have already imported their modules.

They read jobs, answer and end like new processes, and are children of the command.
"""

import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from streaming_ext import own_module
from tests.warm.nursery import Forked, Nursery


def fork_children() -> None:
    """Make the processes for own modules forks; call this before the process has a thread."""
    _ForkedModule.nursery = Nursery.forked(_be_module)
    vars(own_module)["subprocess"] = SimpleNamespace(Popen=_ForkedModule)


class _ForkedModule(Forked):
    """A module of Shardmill, forked from this process's nursery."""


def _be_module(request: dict[str, Any]) -> NoReturn:
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    _, _, _, module, *rest = request["words"]
    sys.argv = [module, *rest]
    Path("/proc/self/comm").write_text(module.rpartition(".")[2])  # the name by which tests find it
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()
