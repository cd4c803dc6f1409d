"""When the embedded API is quick: until a run has begun, and when somebody asks for its records.

Prefect's recorder gathers what it is told, and writes a batch each second. At its end a run waits
for the last batch: the question how many are written has the recorder write the others. In between
records can wait for the work that they are of.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

COUNTED = "/task_runs/count"
EVENTS = "/events/in"
_NICENESS = 19


class _Asyncio:
    """`asyncio` as the recorder sees it: a pause between batches ends when somebody asks.

    Attributes:
        asked: somebody did, since the last pause.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        """Wait this long, or until somebody asks."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.asked.wait(), seconds)
        self.asked.clear()


def prompt(app: Any) -> Any:
    """Prefect's API as an ASGI application that has no one who asks for records wait for them.

    Its process steps back when the first event of a task run comes: it is not to stand back before
    there is a flow run, while workers are busy with the first parts.
    """
    from prefect.server.services import task_run_recorder

    pauses = _Asyncio()
    setattr(task_run_recorder, "asyncio", pauses)  # noqa: B010

    async def prompt_app(scope: Any, receive: Any, send: Any) -> None:
        path = str(scope.get("path", ""))
        if path.endswith(COUNTED):
            pauses.asked.set()
        elif path.endswith(EVENTS):
            _step_back()
        await app(scope, receive, send)

    return prompt_app


def _step_back() -> None:
    """Let every thread of this process wait for whoever else wants a core."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICENESS)
