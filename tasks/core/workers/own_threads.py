"""Small jobs in threads of this process: they are done before a worker process would be ready."""

import threading
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel

from streaming_ext.errors import ShardmillError, StoppedError, WorkerDiedError
from streaming_ext.text.token_sets.id_documents import IdsAsTheyAre
from streaming_ext.text.tokenizer.tokenizer import open_saved
from tasks.core.workers.jobs import TokenizeJob
from tasks.core.workers.light_jobs import LightJobs
from tasks.core.workers.messages import Job, JobProgress, R
from tasks.core.workers.pool import InternalError
from tasks.core.workers.tokenize_part import tokenize_part

LITTLE_BYTES = 64 * 2**20  # read and written before a worker process would be ready
Report = Callable[[JobProgress], None]


class OwnThreads:
    """What `WorkerPool` is to those who hand out jobs, without a process.

    A thread cannot be ended from outside: once stopped, nobody waits for what is in hand, which
    ends by itself at its next sign of progress, or with this process.

    Args:
        size: jobs at the same time.
    """

    def __init__(self, size: int) -> None:
        self._room = threading.Semaphore(size)
        self._stop: Future[None] = Future()
        self._light = LightJobs()
        self._tokenizer = cache(open_saved)

    def __enter__(self) -> "OwnThreads":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.done()

    def stop(self) -> None:
        """Give up whatever is in hand."""
        if not self._stop.done():
            self._stop.set_result(None)

    def prepare(self, tokenizer_folder: Path, engine: Literal["auto", "reference"]) -> None:
        """Nothing: no thread tokenizes."""

    def run(self, job: Job[R], on_progress: Report = lambda _: None) -> R:
        """Do a job once there is room; blocks until it is done. Called from several threads.

        Raises:
            ShardmillError: whatever the job raised; `StoppedError` where all was stopped meanwhile.
        """
        done: Future[R] = Future()

        def report(progress: JobProgress) -> None:
            self._require_going()
            on_progress(progress)

        def work() -> None:
            try:
                done.set_result(cast("R", self._do(job, report)))
            except ShardmillError as error:
                done.set_exception(error)
            except MemoryError:
                done.set_exception(WorkerDiedError("this process ran out of memory"))
            except Exception:  # noqa: BLE001  raised where it is waited for, with this traceback
                done.set_exception(InternalError(traceback.format_exc()))

        with self._room:
            self._require_going()
            threading.Thread(target=work, daemon=True, name="shardmill-job").start()
            waited: list[Future[Any]] = [done, self._stop]
            wait(waited, return_when=FIRST_COMPLETED)
        if not done.done():
            raise StoppedError("the run was stopped")
        return done.result()

    def _require_going(self) -> None:
        if self.stopped:
            raise StoppedError("the run was stopped")

    def _do(self, job: Job[Any], report: Report) -> BaseModel:
        if (done := self._light.do(job, report, memories={})) is not None:
            return done
        if isinstance(job, TokenizeJob) and job.spec.imported is not None:
            tokenizer = self._tokenizer(Path(job.tokenizer_folder))
            return tokenize_part(job, tokenizer, IdsAsTheyAre(), report).brief()
        raise TypeError(f"{type(job).__name__} is for worker processes alone")
