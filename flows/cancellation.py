"""Ending a run that is cancelled in Prefect where no worker would do it.

A worker ends the runs that it started. Of a run that a person started, `prefect flow-run cancel`
and the dashboard's button only record the wish: the run has to look for it.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, TerminationSignal
from prefect.runtime import deployment, flow_run

from streaming_ext.errors import StoppedError
from tasks.prefect_api import asked_once

POLL_SECONDS = 2.0


@contextmanager
def ended_when_cancelled() -> Iterator[None]:
    """End the block as SIGTERM does when somebody cancels the current flow run.

    Raises:
        StoppedError: somebody did.
    """
    is_main = threading.current_thread() is threading.main_thread()  # that signals are for
    if deployment.id or not is_main:
        yield
        return
    watch = _Watch(UUID(str(flow_run.id)))
    # The thread talks to the API that this run talks to, which a context may have set.
    context = copy_context()
    threading.Thread(target=lambda: context.run(watch.keep), daemon=True).start()
    try:
        yield
    except (Exception, TerminationSignal) as error:
        if watch.cancelled:
            raise StoppedError("the run was cancelled in Prefect") from error
        raise
    finally:
        watch.end()


class _Watch:
    """The thread that looks whether a run is cancelled."""

    def __init__(self, run: UUID) -> None:
        self.cancelled = False
        self._run = run
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def keep(self) -> None:
        """Look every few seconds; send this process SIGTERM, once, when the run is cancelled."""
        while not self._ended.wait(POLL_SECONDS):
            if not self._is_cancelled():
                continue
            with self._lock:
                if not self._ended.is_set():
                    self.cancelled = True
                    # To the thread, so that it wakes up from whatever it waits for.
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            return

    def end(self) -> None:
        """Send no signal from now on."""
        with self._lock:
            self._ended.set()

    def _is_cancelled(self) -> bool:
        with asked_once(), get_client(sync_client=True) as client:
            try:
                state = client.read_flow_run(self._run).state
            except ObjectNotFound:  # the record is gone; the work is none the worse for it
                return False
            return state is not None and (state.is_cancelling() or state.is_cancelled())
        return False
