"""Prefect's API for a run that has no server: a process that lives as long as the run.

Prefect's temporary server shares the process group, so that Ctrl+C ends it before the run could
report how it ended; it goes on when the run is killed; and it drops what it has not yet written
when it is stopped. This one ignores Ctrl+C, ends when its parent does, and is stopped only when it
has recorded all that it was told.
"""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

START_SECONDS = 180.0  # some six on an idle machine; one that ends earlier is told at once
# Nobody looks at it or automates it while it lives: the states of runs are all that it records.
# One at a time, it falls behind many small files; what makes no whole batch is written in the end.
_SERVER_SETTINGS = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "50",
}
_QUIET_SECONDS = 0.6  # without a new record: the server writes in batches, several a second
_DRAIN_SECONDS = 60.0
_DRAIN_SECONDS_STOPPED = 2.0  # after Ctrl+C nobody wants to wait
_STOP_SECONDS = 5.0


@contextmanager
def prefect_api() -> Iterator[str]:
    """Make sure that there is an API to talk to; yields its URL.

    The configured server is used where there is one, else an embedded one runs for this block.
    """
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_LOGGING_TO_API_ENABLED,
        get_current_settings,
        temporary_settings,
    )

    configured = get_current_settings().api.url
    if configured:
        yield configured
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "flows.prefect_api.embedded_api", str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            process_group=0,  # Ctrl+C is not for it; a session of its own would void its niceness
            env=os.environ | _SERVER_SETTINGS,
        )
    try:
        _wait_until_healthy(url, server)
        # Log lines are for a dashboard; here only the states of runs are kept.
        with temporary_settings({PREFECT_API_URL: url, PREFECT_LOGGING_TO_API_ENABLED: False}):
            try:
                yield url
            except BaseException:
                _let_record(url, seconds=_DRAIN_SECONDS_STOPPED)
                raise
            _let_record(url, seconds=_DRAIN_SECONDS)
    finally:
        assert server.stdin is not None  # noqa: S101  (it is a pipe)
        server.stdin.close()
        try:
            server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_healthy(url: str, server: "subprocess.Popen[bytes]") -> None:
    import httpx

    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"Prefect's embedded API ended with exit code {server.returncode}.")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError(f"Prefect's embedded API did not answer within {START_SECONDS:.0f} s.")


def _let_record(url: str, *, seconds: float) -> None:
    """Have Prefect's threads send what they hold, and wait until no more of it is written down.

    Task runs are recorded behind the run's back, some hundred a second.
    """
    import httpx
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    deadline = time.monotonic() + seconds
    EventsWorker.drain_all(timeout=seconds)
    APILogWorker.drain_all(timeout=seconds)
    final = {"task_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}}}
    last, since = -1, time.monotonic()
    # The dataset is done whatever becomes of these records, so a deaf server is no error.
    with suppress(httpx.TransportError):
        while time.monotonic() < min(deadline, since + _QUIET_SECONDS):
            count = httpx.post(f"{url}/task_runs/count", json=final, timeout=5).json()
            if count != last:
                last, since = count, time.monotonic()
            time.sleep(0.1)


def _serve(descriptor: int) -> None:
    import uvicorn

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(100_000, 20, 100)  # starting makes a million objects that stay
    os.nice(19)  # records can wait for the work that they are of
    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        fd=descriptor,
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)

    def end_with_parent() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        server.should_exit = True
        time.sleep(_STOP_SECONDS)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    server.run()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
