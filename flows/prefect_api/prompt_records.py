"""The records of task runs, written down when somebody asks for them, and not up to a second later.

Prefect's recorder gathers what it is told, and writes a batch each second. At its end a run waits
for the last batch: the question how many are written has the recorder write the others.
"""

import asyncio
from contextlib import suppress
from typing import Any

COUNTED = "/task_runs/count"


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
    """Prefect's API as an ASGI application that has no one who asks for records wait for them."""
    from prefect.server.services import task_run_recorder

    pauses = _Asyncio()
    setattr(task_run_recorder, "asyncio", pauses)  # noqa: B010

    async def prompt_app(scope: Any, receive: Any, send: Any) -> None:
        if str(scope.get("path", "")).endswith(COUNTED):
            pauses.asked.set()
        await app(scope, receive, send)

    return prompt_app
