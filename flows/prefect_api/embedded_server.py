"""The process of the embedded API: Prefect's server, with what one run does not need left out."""

import gc
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from flows.prefect_api.database import make_home, needs_no_migration, note_migrated
from flows.prefect_api.prompt_records import COUNTED, EVENTS, prompt

STOP_SECONDS = 5.0
READY = b"+"
_MOST_WORDS = 2000  # bytes; a pipe takes them at once
# Nobody looks at it or automates it while it lives: the states of runs are all that it records.
# One at a time, it falls behind many small files; what makes no whole batch is written each second.
_SETTINGS = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",  # it loads every collection to tell
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "50",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PY_KEY_VALUE_DISABLE_BEARTYPE": "true",  # checks of types, compiled anew at each start
}
# What a run asks for. FastAPI builds a router when a request first looks through it, and a request
# looks through all routers up to its own: of Prefect's thirty that takes seconds.
USED = {
    "/admin/storage",
    "/admin/version",
    "/artifacts/",
    "/artifacts/{id:uuid}",
    "/csrf-token",
    EVENTS,
    "/flow_runs/",
    "/flow_runs/{id:uuid}",
    "/flow_runs/{id:uuid}/set_state",
    "/flows/",
    "/flows/{id:uuid}",
    COUNTED,
}


def serve(listener: socket.socket, parent_lives: int, is_ready: int) -> None:
    """Be the API's process, forked from the command, to its end."""
    gc.disable()  # starting makes a million objects that stay
    os.environ.update(_SETTINGS)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]  # it asks nobody, and clients that it makes look at all of them
    try:
        _run_server(listener, parent_lives, is_ready)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, _NotStartedError):
            reason = str(error)
        with suppress(OSError):
            os.write(is_ready, reason.encode()[:_MOST_WORDS])
        raise


def _run_server(listener: socket.socket, parent_lives: int, is_ready: int) -> None:
    import uvicorn
    from prefect.context import refresh_global_settings_context

    make_home()
    if needs_no_migration():
        os.environ["PREFECT_API_DATABASE_MIGRATE_ON_START"] = "false"
    refresh_global_settings_context()  # those of the command were read before the fork

    errors = _FirstError()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            # Of its own: Prefect takes all handlers away from those that are known by name.
            self.lifespan.logger = logging.Logger("start")
            self.lifespan.logger.addHandler(errors)
            await super().startup(sockets)
            if self.started:
                gc.freeze()
                gc.enable()
                os.write(is_ready, READY)
                note_migrated()

    server = Server(
        uvicorn.Config(
            _app,
            factory=True,
            log_level="error",
            lifespan="on",
            timeout_graceful_shutdown=2,
        )
    )

    def end_with_parent() -> None:
        while os.read(parent_lives, 1):
            pass
        server.should_exit = True
        time.sleep(STOP_SECONDS)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        server.run(sockets=[listener])
    except SystemExit as end:  # it has logged why
        raise _NotStartedError(errors.raised) from end


class _NotStartedError(Exception):
    """The server ended; says what it had raised."""


class _FirstError(logging.Handler):
    """Keeps the line of the first logged traceback that says what was raised."""

    raised = "it did not start"

    def emit(self, record: logging.LogRecord) -> None:
        found = re.findall(r"^[\w.]+: .+", self.format(record), re.MULTILINE)
        if found and "raised" not in self.__dict__:
            self.raised = found[-1]


def used_routes(routers: Iterable[Any]) -> list[Any]:
    """Those routes of the API's routers that a run asks for."""
    return [
        route
        for router in routers
        for route in router.routes
        if getattr(route, "path", None) in USED
    ]


def _app() -> Any:
    """Prefect's API, in which what a run asks for is found first."""
    import prefect.settings
    from fastapi import APIRouter
    from prefect.server.api import server

    first = APIRouter(routes=used_routes(server.API_ROUTERS))
    server.API_ROUTERS = (first, *server.API_ROUTERS)  # type: ignore[assignment]
    # A key under which apps are kept for others, made of all settings: 0.1 s each time.
    setattr(prefect.settings.Settings, "hash_key", lambda _: "the only one")  # noqa: B010
    return prompt(server.create_app())
