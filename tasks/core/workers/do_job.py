"""What a worker process does with each job."""

import importlib
import os
import sys
import time
import traceback
from typing import Any

from streaming_ext.errors import ShardmillError, WorkerDiedError
from streaming_ext.text.memory import VARIABLE as MEMORY_VARIABLE
from tasks.core.workers.kept import Kept
from tasks.core.workers.messages import Answer, Failure, Job, JobProgress, Report

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
