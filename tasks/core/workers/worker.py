"""The worker process: it reads jobs as JSON lines from stdin, and answers on stdout.

It leaves Ctrl+C to the parent, and exits at once when stdin ends, which also happens when the
parent is killed. Unfinished files never count: a file is moved into place, and recorded, when it is
complete.
"""

import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import Any

from streaming_ext.base.errors import ShardmillError, WorkerDiedError
from streaming_ext.base.memory import VARIABLE as MEMORY_VARIABLE
from tasks.core.workers.messages import Answer, Failure, Job, JobProgress, WorkerCache

_PROGRESS_SECONDS = 0.25


def serve(line: bytes, cache: WorkerCache) -> None:
    """Do the job in a line of JSON; write its progress and result to stdout."""
    last = began = time.monotonic()
    latest = JobProgress(fraction=0.0)

    def report(progress: JobProgress) -> None:
        nonlocal last, latest
        latest = progress
        if time.monotonic() - last >= _PROGRESS_SECONDS:
            last = time.monotonic()
            _send(Answer(progress=progress))

    try:
        result = Job.from_line(line).do(cache, report)
        _send(Answer(progress=latest))
        seconds = time.monotonic() - began
        _send(Answer(result=result.model_copy(update={"seconds": seconds})))
    except ShardmillError as error:
        _fail(type(error).__name__, str(error))
    except MemoryError:
        _fail(
            WorkerDiedError.__name__,
            f"the worker ran out of memory. Use fewer --workers, or raise {MEMORY_VARIABLE} (4GiB)",
        )
    except Exception:  # noqa: BLE001  the parent raises it, with this traceback
        _fail("InternalError", traceback.format_exc())


def _send(answer: Answer[Any]) -> None:
    os.write(sys.stdout.fileno(), answer.model_dump_json(exclude_none=True).encode() + b"\n")


def _fail(error: str, message: str) -> None:
    _send(Answer(failure=Failure(error=error, message=message)))


def _read_jobs(jobs: "queue.SimpleQueue[bytes]") -> None:
    for line in sys.stdin.buffer:
        jobs.put(line)
    os._exit(0)  # the parent is gone or done, so nobody waits for the current job


def main() -> None:
    """Serve jobs until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import pyarrow as pa

    from streaming_ext.base.memory import limit_memory
    from streaming_ext.text.tokenizer.json_file import one_thread_each

    pa.set_cpu_count(1)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    limit_memory()
    cache = WorkerCache()
    with one_thread_each():
        while True:
            serve(jobs.get(), cache)


if __name__ == "__main__":
    main()
