"""The end of a run does not wait for the next batch of records."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from prefect.server.events.schemas.events import ReceivedEvent
from prefect.server.services import task_run_recorder
from prefect.server.utilities.messaging.memory import MemoryMessage

from flows.prefect_api.prompt_records import COUNTED, prompt
from tests.command_line import PATIENCE_SECONDS

_AN_HOUR = 3600


def test_who_asks_for_records_has_them_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_run_recorder, "asyncio", asyncio)  # put back in the end
    event = ReceivedEvent.model_validate(
        {
            "occurred": "2026-01-01T00:00:00Z",
            "event": "prefect.task-run.Completed",
            "resource": {
                "prefect.resource.id": f"prefect.task-run.{uuid4()}",
                "prefect.orchestration": "client",
            },
            "id": uuid4(),
        }
    )

    async def ask() -> None:
        written: asyncio.Queue[ReceivedEvent] = asyncio.Queue()
        answered: list[str] = []

        async def write(events: list[ReceivedEvent]) -> None:
            for each in events:
                written.put_nowait(each)

        async def api(scope: Any, _receive: Any, _send: Any) -> None:
            answered.append(scope["path"])

        monkeypatch.setattr(task_run_recorder, "record_bulk_task_run_events", write)
        app = prompt(api)
        async with task_run_recorder.consumer(write_batch_size=50, flush_every=_AN_HOUR) as take:
            for path in ("/api/health", f"/api{COUNTED}"):
                await take(MemoryMessage(data=event.model_dump_json().encode(), attributes={}))
                assert written.empty()
                await app({"type": "http", "path": path}, None, None)
            for _ in range(2):
                found = await asyncio.wait_for(written.get(), PATIENCE_SECONDS)
                assert found.id == event.id
        assert answered == ["/api/health", f"/api{COUNTED}"]

    asyncio.run(ask())


def test_records_that_nobody_asks_for_are_written_when_it_is_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_run_recorder, "asyncio", asyncio)
    prompt(None)

    async def wait() -> None:
        await asyncio.wait_for(task_run_recorder.asyncio.sleep(0.001), PATIENCE_SECONDS)

    asyncio.run(wait())
