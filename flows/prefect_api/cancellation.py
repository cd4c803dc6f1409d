"""Ending a run that is over for Prefect, where no worker is there to end it.

A worker ends the runs that it started, as long as it lives. Of a run that a person started,
`prefect flow-run cancel` and the dashboard's button only record the wish: the run must look for it.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, TerminationSignal
from prefect.runtime import deployment, flow_run

from flows.prefect_api.suspension import end_if_suspended, is_suspended
from flows.stops import Stopped, taken
from streaming_ext.base.errors import StoppedError
from tasks.core.reporting.progress import RunProgress
from tasks.prefect_tasks import asked_once

POLL_SECONDS = 3.0


@contextmanager
def ending_without_a_worker() -> Iterator[None]:
    """End the block as SIGTERM does when its run is cancelled or suspended, or its worker dies.

    Raises:
        Pause: it was suspended.
        StoppedError: for what the block raised then; or at its end, where a cancel came so late
            that all was done: for Prefect, a run that is to be cancelled can end in no other way.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield
        return
    by_a_worker = bool(deployment.id)
    watch = _Watch(_suspended_or_orphaned() if by_a_worker else _cancelled())
    # The thread talks to the API that this run talks to, which a context may have set.
    context = copy_context()
    threading.Thread(target=lambda: context.run(watch.keep), daemon=True).start()
    try:
        yield
    except (Exception, TerminationSignal) as error:
        if watch.reason is not None:
            end_if_suspended()
            raise StoppedError(watch.reason) from error
        raise
    finally:
        watch.end()
    if not by_a_worker and (reason := watch.why_over()) is not None:
        raise StoppedError(reason)


@contextmanager
def stopped_by_signals(progress: RunProgress) -> Iterator[None]:
    """Have a run that a person started end as cancelled when that person stops it.

    Of a run that a worker started, the worker decides what a signal means.

    Raises:
        StoppedError: in place of what a signal raised; the progress tells which signal.
    """
    if deployment.id:
        yield
        return
    try:
        yield
    except KeyboardInterrupt as stop:
        taken()
        progress.stopped_by = signal.SIGINT
        raise StoppedError("Ctrl+C") from stop
    except TerminationSignal as stop:
        progress.stopped_by = signal.SIGTERM
        raise StoppedError("SIGTERM") from stop
    except Stopped as stop:
        taken()
        progress.stopped_by = stop.number
        raise StoppedError(str(stop)) from stop


class _Watch:
    """The thread that looks whether the run is over.

    Attributes:
        reason: why the block was ended, once it was.
        why_over: why the run is over, if it is.
    """

    def __init__(self, why_over: Callable[[], str | None]) -> None:
        self.reason: str | None = None
        self.why_over = why_over
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def keep(self) -> None:
        """Look every few seconds; send this process SIGTERM, once, when the run is over."""
        while not self._ended.wait(POLL_SECONDS):
            if (reason := self.why_over()) is None:
                continue
            with self._lock:
                if not self._ended.is_set():
                    self.reason = reason
                    # To the thread, so that it wakes up from whatever it waits for.
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            return

    def end(self) -> None:
        """Send no signal from now on."""
        with self._lock:
            self._ended.set()


def _suspended_or_orphaned() -> Callable[[], str | None]:
    """Asks whether the run was suspended, or the process that started this one is gone."""
    worker = os.getppid()

    def why() -> str | None:
        if is_suspended():
            return "the run was suspended in Prefect"
        return None if os.getppid() == worker else "the worker that started the run is gone"

    return why


def _cancelled() -> Callable[[], str | None]:
    """Asks Prefect whether the current flow run is cancelled."""
    run = UUID(str(flow_run.id))

    def why() -> str | None:
        with asked_once(), get_client(sync_client=True) as client:
            try:
                state = client.read_flow_run(run).state
            except ObjectNotFound:  # only the record is gone
                return None
            if state is not None and (state.is_cancelling() or state.is_cancelled()):
                return "the run was cancelled in Prefect"
        return None

    return why
