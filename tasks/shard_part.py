"""Take one source file through all steps in a process of a Dask cluster."""

import os
import threading
from contextlib import ExitStack

from prefect import task

from streaming_ext.errors import ShardmillError, StoppedError
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.storage import open_storage
from tasks.download import download
from tasks.hosts.guest import Guest
from tasks.running.retrying import OURS
from tasks.running.run import Run
from tasks.tokenize import tokenize
from tasks.write import write


class _Joined:
    """This process at work for a run, from the first of its files until the parent run is over."""

    def __init__(self, output: str, run: str, workers: int) -> None:
        self.ended = threading.Event()
        self._stack = ExitStack()
        self._stack.callback(self.ended.set)
        guest = Guest(open_storage(output), run, f"dask-{os.getpid()}")
        # The watch is a thread of what is to be closed, so another one closes it.
        end = threading.Thread(target=self._stack.close, daemon=True)
        self.means: Run = self._stack.enter_context(guest.means(workers=workers, on_stop=end.start))


_joined: dict[str, _Joined] = {}
_joining = threading.Lock()


def _means(output: str, run: str, workers: int) -> Run:
    with _joining:
        found = _joined.get(run)
        if found is None:
            _joined.clear()  # of runs that are over
            found = _joined[run] = _Joined(output, run, workers)
        return found.means


def is_at_work(run: str) -> bool:
    """Whether this process has anything left of a run."""
    return run in _joined and not _joined[run].ended.is_set()


@task(
    name="shard",
    task_run_name="shard {number:05}",
    retries=3,
    retry_delay_seconds=[1, 5, 20],
    **OURS,
)
def shard_part(output: str, run: str, number: int) -> PartTimes | FailedFile:
    """Download, tokenize and write a source file; see the tasks of these names.

    Args:
        output: of the dataset.
        run: id of the parent's flow run.
        number: of the part.

    Raises:
        StoppedError: the parent run is over.
        ShardmillError: a fault that every other part would meet too, or one that may pass.
    """
    from distributed import get_worker

    means = _means(output, run, get_worker().state.nthreads)
    means.require_going()
    part = means.plan.part(number)
    step = "download"
    try:
        local = part.source.local_path or download.fn(means, part)
        step = "tokenize"
        tokenized = tokenize.fn(means, part, local)
        step = "write"
        return write.fn(means, part, tokenized)
    except ShardmillError as error:
        if error.fatal or error.transient or isinstance(error, StoppedError):
            raise
        return FailedFile(part=number, source=part.source.url, step=step, reason=str(error))
    finally:
        means.forget(part)
