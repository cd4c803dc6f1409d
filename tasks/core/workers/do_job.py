"""What a worker process does with each job, and what it keeps from one to the next."""

import gc
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import ShardmillError, WorkerDiedError
from streaming_ext.text.memory import VARIABLE as MEMORY_VARIABLE
from streaming_ext.text.tokenizer.engine import Engine, choose_engine
from streaming_ext.text.tokenizer.prepared import read_unsafe_code_points
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, open_saved
from tasks.core.deduplicate.kept_order import put_together
from tasks.core.deduplicate.known_texts import KnownTexts
from tasks.core.memories import Memories
from tasks.core.shuffle.gather import gather_part, read_index
from tasks.core.shuffle.run_index import RunIndex
from tasks.core.workers.jobs import (
    JOB,
    AnyJob,
    GatherJob,
    Prepared,
    PrepareJob,
    TokenizeJob,
)
from tasks.core.workers.light_jobs import LightJobs
from tasks.core.workers.messages import Answer, Failure, JobProgress
from tasks.core.workers.tokenize_part import tokenize_part

_PROGRESS_SECONDS = 0.25
_LIGHT = LightJobs()


def load_engines() -> None:
    """Load what the first job needs while the parent still plans."""
    for module in ("awkward", "gigatoken"):
        importlib.import_module(module)


def answer(line: bytes) -> None:
    """Do a job that stands in a line of JSON; how far it is and what came of it go to stdout."""
    _send(_serve(line))


def _send(answer: Answer[Any]) -> None:
    os.write(sys.stdout.fileno(), answer.model_dump_json(exclude_none=True).encode() + b"\n")


def _serve(line: bytes) -> Answer[Any]:
    try:
        report = _throttled(lambda progress: _send(Answer(progress=progress)))
        return Answer(result=_do(JOB.validate_json(line), report))
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


def _do(job: AnyJob, report: Callable[[JobProgress], None]) -> BaseModel:
    if (done := _LIGHT.do(job, report, _memories())) is not None:
        return done
    if isinstance(job, PrepareJob):
        _tokenizer_and_engine(job.tokenizer_folder, job.engine)
        return Prepared()
    if isinstance(job, TokenizeJob):
        tokenizer, engine = _tokenizer_and_engine(job.tokenizer_folder, job.engine)
        known = None
        if job.known_on is not None:
            known = _known_texts(job.known_on, job.spec, job.first)
        part = tokenize_part(job, tokenizer, engine, report, _memories(), known=known)
        return part.brief()
    if isinstance(job, GatherJob):
        storage = _LIGHT.storage(job.output)
        if job.index is None:
            return put_together(job, storage, report, _memories()).brief()
        return gather_part(job, storage, _run_index(job.output, job.index), report, _memories())
    raise TypeError(f"{type(job).__name__} is no job of a worker")


@cache
def _tokenizer_and_engine(
    folder: str, engine: Literal["auto", "reference"]
) -> tuple[Tokenizer, Engine]:
    tokenizer = open_saved(Path(folder))
    unsafe = read_unsafe_code_points(Path(folder))
    chosen = choose_engine(tokenizer, engine=engine, unsafe=unsafe)
    gc.freeze()  # what is loaded stays: looking through it again and again costs a twentieth
    return tokenizer, chosen


@cache
def _memories() -> Memories:
    return {}


@lru_cache(1)
def _known_texts(output: str, spec: DatasetSpec, first: int) -> KnownTexts:
    return KnownTexts(_LIGHT.storage(output), spec, first)


@lru_cache(1)
def _run_index(output: str, file: FileRecord) -> RunIndex:
    return read_index(_LIGHT.storage(output), file)


def _throttled(send: Callable[[JobProgress], None]) -> Callable[[JobProgress], None]:
    last = time.monotonic()

    def report(progress: JobProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_SECONDS:
            last = time.monotonic()
            send(progress)

    return report
