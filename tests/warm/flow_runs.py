"""The flow runs of a Prefect worker as forks, if the worker is one itself.

For each run, Prefect's worker starts two programs, each of which imports Prefect: one that prepares
the run, and then in the same process the engine. Here both are forks of the worker's nursery, with
the session, streams, folder and environment that the worker chose.
"""

import asyncio.unix_events
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from tests.warm.nursery import Forked, Nursery
from tests.warm.worker import fork_children

PREPARATION, ENGINE = "prefect.runner._workspace_supervisor", "prefect.engine"


def fork_flow_runs() -> None:
    """Make the flow runs that this process starts, and their worker processes, forks.

    Call this before the process has a thread or has imported Prefect.
    """
    _ForkedRun.nursery = Nursery.forked(_be_run)
    vars(asyncio.unix_events)["subprocess"] = SimpleNamespace(
        Popen=_ForkedRun, PIPE=subprocess.PIPE
    )


class _ForkedRun(Forked):
    """`python -m MODULE ARGUMENTS...` of a flow run as a fork."""

    @staticmethod
    def is_ours(words: Sequence[str]) -> bool:
        """Return whether a command is a flow run's."""
        return words[:2] == [sys.executable, "-m"] and words[2] in {PREPARATION, ENGINE}


def _be_run(request: dict[str, Any]) -> NoReturn:
    if request["new_session"]:
        os.setsid()
    words, folder, environment = request["words"], request["folder"], request["environment"]
    if words[2] == PREPARATION:
        words, folder, environment = _prepared(words, folder, environment)
    fork_children()
    _become(words, folder, environment)


def _prepared(
    words: list[str], folder: str, environment: dict[str, str]
) -> tuple[list[str], str, dict[str, str]]:
    """Have a child prepare a run, and return the program that it would become."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:

        def go_on_as(_: str, words: list[str], environment: dict[str, str]) -> NoReturn:
            with os.fdopen(tell, "w") as out:
                json.dump([words, str(Path.cwd()), environment], out)
            os._exit(0)

        os.close(told)
        os.execvpe = go_on_as  # type: ignore[assignment]
        _become(words, folder, environment)
    os.close(tell)
    with os.fdopen(told) as answer:
        message = answer.read()
    _, status = os.waitpid(child, 0)
    if not message:  # the preparation failed, and the child has said why
        os._exit(abs(os.waitstatus_to_exitcode(status)))
    prepared: tuple[list[str], str, dict[str, str]] = tuple(json.loads(message))
    return prepared


def _become(words: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Go on as `python -m MODULE ARGUMENTS...`, or start another program anew."""
    os.chdir(folder)
    if not _ForkedRun.is_ours(words):
        os.execvpe(words[0], words, environment)  # noqa: S606
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = words[2:]
    runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    sys.exit()
