"""The worker process: takes jobs as JSON lines on stdin, answers on stdout, ends with its parent.

Its stdin is a socket, over which the file descriptors come first that it is to hold.

It leaves Ctrl+C to the parent, and ends at once when stdin ends, which also happens when the
parent is killed. Nothing it leaves behind is ever taken for whole: what is on scratch is recorded,
and shards are put in place, when they are complete.
"""

import gc
import importlib
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

from streaming_ext.base.errors import ShardmillError, WorkerDiedError
from streaming_ext.text.memory import VARIABLE as MEMORY_VARIABLE
from tasks.core.workers.messages import Answer, Failure, Job, JobProgress, Kept, Report

_PROGRESS_SECONDS = 0.25
_kept = Kept()


def load_engines() -> None:
    """Load what the first job needs while the parent still plans."""
    for module in ("awkward", "gigatoken", "tasks.core.workers.tokenize_part"):
        importlib.import_module(module)


def answer(line: bytes) -> None:
    """Do a job that stands in a line of JSON; how far it is and what came of it go to stdout."""
    _send(_serve(line))


def _send(answer: Answer[Any]) -> None:
    os.write(sys.stdout.fileno(), answer.model_dump_json(exclude_none=True).encode() + b"\n")


def _serve(line: bytes) -> Answer[Any]:
    try:
        report = _throttled(lambda progress: _send(Answer(progress=progress)))
        return Answer(result=Job.from_line(line).do(_kept, report))
    except ShardmillError as error:
        return Answer(failure=Failure(error=type(error).__name__, message=str(error)))
    except MemoryError:
        told = (
            f"the worker ran out of memory. {MEMORY_VARIABLE} says how much each may take (4GiB "
            "unless set); fewer --workers share what there is"
        )
        return Answer(failure=Failure(error=WorkerDiedError.__name__, message=told))
    except Exception:  # noqa: BLE001  the parent raises it, with this traceback
        return Answer(failure=Failure(error="InternalError", message=traceback.format_exc()))


def _throttled(send: Report) -> Report:
    last = time.monotonic()

    def report(progress: JobProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_SECONDS:
            last = time.monotonic()
            send(progress)

    return report


_MOST_HELD = 8  # file descriptors


def main() -> None:
    """Serve jobs until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # what is loaded stays: looking through it again and again takes an eighth
    import pyarrow as pa

    from streaming_ext.text.memory import limit_memory
    from tasks.core.workers.worker import answer, load_engines

    pa.set_cpu_count(1)
    parent = socket.socket(fileno=sys.stdin.fileno())
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(parent, jobs), daemon=True).start()
    if "light" not in sys.argv[1:]:
        load_engines()
    gc.freeze()
    gc.enable()
    limit_memory()
    while True:
        answer(jobs.get())


def _read_jobs(parent: socket.socket, jobs: "queue.SimpleQueue[bytes]") -> None:
    from tasks.core.workers.messages import HELD

    socket.recv_fds(parent, len(HELD), _MOST_HELD)  # they stay open until this process ends
    pending = b""
    while chunk := parent.recv(2**16):
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            jobs.put(line)
    os._exit(0)  # the parent is gone or done: nobody waits for what is in hand


if __name__ == "__main__":
    main()
