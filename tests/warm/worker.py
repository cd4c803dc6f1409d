"""Child processes of a command as forks, which have loaded what these load.

They read jobs, answer, and end as those that were started anew do, and are children of the command.
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
    """Have own modules that this process starts be forks; it has no thread yet."""
    _ForkedModule.nursery = Nursery.forked(_be_module)
    vars(own_module)["subprocess"] = SimpleNamespace(Popen=_ForkedModule)


class _ForkedModule(Forked):
    """A module of ours, forked from this process's nursery."""


def _be_module(request: dict[str, Any]) -> NoReturn:
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    _, _, _, module, *rest = request["words"]
    sys.argv = [module, *rest]
    Path("/proc/self/comm").write_text(module.rpartition(".")[2])  # as others find it
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()
