"""The runs that one process of a Dask cluster works for: joined with the first file of each."""

import os
import platform
import threading
from contextlib import ExitStack

from tasks.core.storage import open_storage
from tasks.hosts.guest import Guest
from tasks.running.run import Run


class JoinedRuns:
    """All runs that this process works for; several may live at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._joined: dict[str, _JoinedRun] = {}

    def means(self, output: str, run: str, workers: int) -> Run:
        """What working for a run takes; who asks first joins the run, others wait for that.

        Args:
            output: of the dataset.
            run: id of the parent's flow run.
            workers: processes to start for it.

        Raises:
            StoppedError: the run is over.
            ShardmillError: this process cannot take part in it.
        """
        with self._lock:
            for over in [name for name, one in self._joined.items() if one.ended.is_set()]:
                del self._joined[over]
            joined = self._joined.setdefault(run, _JoinedRun(output, run, workers))
        return joined.means()

    def is_at_work(self, run: str) -> bool:
        """Whether anything of a run is left here, from the moment that it is being joined."""
        with self._lock:
            return run in self._joined and not self._joined[run].ended.is_set()


class _JoinedRun:
    """One run, from its first file here until it is over or could not be joined.

    Attributes:
        ended: nothing of it is left.
    """

    def __init__(self, output: str, run: str, workers: int) -> None:
        self.ended = threading.Event()
        self._where = (output, run, workers)
        self._lock = threading.Lock()
        self._means: Run | None = None
        self._fault: Exception | None = None
        self._stack = ExitStack()
        self._stack.callback(self.ended.set)

    def means(self) -> Run:
        with self._lock:
            if self._means is None and self._fault is None:
                self._join()
        if self._fault is not None:
            raise self._fault
        assert self._means is not None  # noqa: S101  (one of the two was set)
        return self._means

    def _join(self) -> None:
        output, run, workers = self._where
        # The watch is a thread of what is to be closed, so another one closes it.
        end = threading.Thread(target=self._end, daemon=True)
        try:
            guest = Guest(open_storage(output), run, f"dask-{platform.node()}-{os.getpid()}")
            means = guest.means(workers=workers, on_stop=end.start)
            self._means = self._stack.enter_context(means)
        except Exception as error:  # noqa: BLE001  raised in every thread that waits for it
            self._stack.close()
            self._fault = error

    def _end(self) -> None:
        with self._lock:  # not before it is joined
            self._stack.close()
