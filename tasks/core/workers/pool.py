"""The pool of worker processes: it starts them, hands out jobs, notices deaths, and cleans up."""

import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

from streaming_ext.base import errors
from streaming_ext.base.errors import InternalError, ShardmillError, StoppedError, WorkerDiedError
from streaming_ext.own_module import start_module
from tasks.core.workers.messages import Failure, Job, JobProgress, R

_STDERR_TAIL_BYTES = 2000
_END_SECONDS = 5.0
# Each batch allocates and frees arrays of some MB. If memory is kept, not returned to the system,
# its pages need not be zeroed again, saving a tenth of the time. Huge pages, which many systems
# give only to programs that ask, make look-ups in large vocabularies a fifth faster. Only glibc and
# Arrow read these.
_MEMORY_SETTINGS = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


class Worker:
    """One child process and its pipes.

    Args:
        inherited: the file descriptors that the process keeps open until it ends.
    """

    def __init__(self, inherited: Sequence[int]) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in reap)
        self._process = start_module(
            "tasks.core.workers.worker",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            pass_fds=inherited,
            env=_MEMORY_SETTINGS | os.environ,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, job: Job[R], on_progress: Callable[[JobProgress], None]) -> R | Failure:
        """Do one job, and wait for its result.

        Raises:
            WorkerDiedError: the process ended before it answered.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None  # noqa: S101  (both are pipes)
        assert stdout is not None  # noqa: S101
        try:
            stdin.write(job.to_line())
            stdin.flush()
        except BrokenPipeError as error:
            raise WorkerDiedError(self._how_it_ended()) from error
        while line := stdout.readline():
            answer = job.read_answer(line)
            if answer.failure is not None:
                return answer.failure
            if answer.result is not None:
                return answer.result
            if answer.progress is not None:
                on_progress(answer.progress)
        raise WorkerDiedError(self._how_it_ended())

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "the worker process was killed by SIGKILL, as the system does when memory is out"
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _STDERR_TAIL_BYTES))
        output = self._stderr.read().decode(errors="replace").strip() or "it printed nothing"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return f"the worker process {how}: {output}"

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def reap(self) -> None:
        """Collect the process after `kill`, and close its pipes."""
        self._process.wait(_END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a job was written in part
                    pipe.close()


class WorkerPool:
    """Long-lived worker processes, started as needed; each does one job at a time.

    Args:
        size: the largest number of processes.
        inherited: the file descriptors that the processes keep open until they end.

    Attributes:
        stopped: True once `stop` was called.
    """

    def __init__(self, size: int, *, inherited: Sequence[int] = ()) -> None:
        self._inherited = inherited
        self._lock = threading.Lock()
        # Slots with a worker come first, so a free worker is used before another one is started.
        self._slots: queue.PriorityQueue[tuple[bool, int, Worker | None]]
        self._slots = queue.PriorityQueue(size)
        for number in range(size):
            self._slots.put((True, number, None))
        self._alive: set[Worker] = set()
        self.stopped = False

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that are alive."""
        with self._lock:
            return [worker.pid for worker in self._alive]

    def run(self, job: Job[R], on_progress: Callable[[JobProgress], None] = lambda _: None) -> R:
        """Do a job in a free worker, and wait for its result; may be called from several threads.

        Raises:
            ShardmillError: the error that the job raised; `WorkerDiedError` if the process died,
                `StoppedError` if the pool was stopped meanwhile.
        """
        _, number, worker = self._slots.get()
        try:
            worker = worker or self._start()
            result = worker.run(job, on_progress)
        except BaseException as error:
            if worker is not None:
                self._discard(worker)
                worker = None
            if self.stopped:
                raise StoppedError("the run was stopped") from error
            raise
        finally:
            self._slots.put((worker is None, number, worker))
        if isinstance(result, Failure):
            raise as_error(result)
        return result

    def start_one(self) -> None:
        """Start one worker ahead of the first job, so that it imports its modules meanwhile."""
        _, number, worker = self._slots.get()
        self._slots.put((False, number, worker or self._start()))

    def run_ahead(self, job: Job[Any]) -> None:
        """Do a job in the background; its error is ignored, as later jobs will report it.

        Only one worker works until the job is done: others would repeat its work.
        """
        first, *others = [self._slots.get() for _ in range(self._slots.maxsize)]
        self._slots.put(first)

        def run() -> None:
            try:
                with suppress(ShardmillError):
                    self.run(job)
            finally:
                for slot in others:
                    self._slots.put(slot)

        threading.Thread(target=run, daemon=True).start()

    def _start(self) -> Worker:
        with self._lock:
            if self.stopped:
                raise StoppedError("the run was stopped")
            worker = Worker(self._inherited)
            self._alive.add(worker)
        return worker

    def _discard(self, worker: Worker) -> None:
        worker.kill()
        with self._lock:
            known = worker in self._alive
            self._alive.discard(worker)
        if known:
            worker.reap()

    def stop(self) -> None:
        """End all workers now, in the middle of their jobs."""
        with self._lock:
            self.stopped = True
            workers = list(self._alive)
        for worker in workers:
            worker.kill()
        for worker in workers:
            self._discard(worker)


def as_error(failure: Failure) -> ShardmillError:
    """Return the error that a failure stands for, by its type."""
    kind = getattr(errors, failure.error, None)
    if isinstance(kind, type) and issubclass(kind, ShardmillError):
        return kind(failure.message)
    return InternalError(failure.message)
