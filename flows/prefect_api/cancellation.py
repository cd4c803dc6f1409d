"""The prompt end of a run that was cancelled, suspended or orphaned.

A worker ends the runs that it started, as long as it lives. If a person started a run, `prefect
flow-run cancel` and the dashboard's button only record a request, and the run must look for it.
Suspend ends a deployed run, and Resume makes a worker run the flow again. Prefect itself notices a
suspension only at the next task run, which may be minutes away.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, TerminationSignal
from prefect.runtime import deployment, flow_run

from flows.prefect_api.connection import one_attempt
from flows.stops import Stopped, handled
from streaming_ext.base.errors import StoppedError
from tasks.core.reporting.progress import RunProgress

POLL_SECONDS = 3.0


def is_suspended() -> bool:
    """Return whether the current flow run is suspended."""
    context = FlowRunContext.get()
    return context is not None and context.flow_run_suspension_request.is_requested()


def end_if_suspended() -> None:
    """End the current flow run if it is suspended.

    Raises:
        Pause: the run is suspended; Prefect ends the process then, but not the run.
    """
    context = FlowRunContext.get()
    if context is not None:
        context.flow_run_suspension_request.raise_if_requested()


@contextmanager
def ending_early(progress: RunProgress) -> Iterator[None]:
    """End the block if its run is cancelled or suspended, its worker dies, or a signal arrives.

    If a worker started the run, the worker decides what a signal means.

    Raises:
        Pause: the run was suspended.
        StoppedError: the run was stopped. This replaces the error of the block or the exception of
            a signal, which `progress` then holds. It is also raised at the end of the block if the
            run was cancelled too late, because Prefect then accepts no other end.
    """
    if threading.current_thread() is not threading.main_thread():  # only that receives signals
        yield
        return
    worker = os.getppid() if deployment.id else None
    reasons: list[str] = []
    lock, over = threading.Lock(), threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            if (reason := _why_over(worker)) is None:
                continue
            with lock:
                if not over.is_set():
                    reasons.append(reason)
                    # A signal to the main thread wakes it up, whatever it waits for.
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            return

    # The thread must use the API of this run, which the context may set.
    context = copy_context()
    threading.Thread(target=lambda: context.run(watch), daemon=True).start()
    try:
        try:
            yield
        finally:
            with lock:  # from now on the thread sends nothing
                over.set()
        if worker is None and (reason := _why_over(None)) is not None:
            raise StoppedError(reason)  # noqa: TRY301  (handled below like a signal)
    except (Exception, KeyboardInterrupt, TerminationSignal, Stopped) as error:
        if reasons:
            end_if_suspended()
            raise StoppedError(reasons[0]) from error
        if deployment.id or isinstance(error, Exception):
            raise
        handled()
        # New exceptions have no traceback. After Ctrl+C a caller in Python gets the usual one.
        interrupted = isinstance(error, KeyboardInterrupt)
        number = error.number if isinstance(error, Stopped) else signal.SIGTERM
        progress.stopped_by = KeyboardInterrupt() if interrupted else Stopped(number)
        by_keys = interrupted or number == signal.SIGINT
        raise StoppedError("Ctrl+C" if by_keys else signal.Signals(number).name) from error


def _why_over(worker: int | None) -> str | None:
    """Return the reason why the current flow run is over; None if it is not.

    Args:
        worker: the id of the worker process that started the run; None if a person started it.
    """
    if worker is not None:
        if is_suspended():
            return "the run was suspended in Prefect"
        return None if os.getppid() == worker else "the worker that started the run is gone"
    # If somebody deleted the record, the run continues.
    with one_attempt(), get_client(sync_client=True) as client, suppress(ObjectNotFound):
        state = client.read_flow_run(UUID(str(flow_run.id))).state
        if state is not None and (state.is_cancelling() or state.is_cancelled()):
            return "the run was cancelled in Prefect"
    return None
