"""The messages in a worker's pipes, whatever the job is.

A job is typed by its result: `Job[FetchedPart]` is answered with a `FetchedPart`. It names its
class, so a new kind of job is a class and nothing else.
"""

import importlib
import json
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar, cast

from pydantic import BaseModel, ConfigDict

from streaming_ext.store import Storage, open_storage
from streaming_ext.writing.split_writer import Memories

P = ParamSpec("P")
R = TypeVar("R")


class WorkerCache:
    """Objects that a worker keeps from job to job, so that it need not open or read them again.

    Attributes:
        memories: the memories in which shards are put together, or read; for one job at a time.
        storage: opens the storage at a URL, or returns the open one with its connections.
    """

    def __init__(self) -> None:
        self.memories: Memories = {}
        self.storage: Callable[[str], Storage] = cache(open_storage)
        self._latest: dict[object, tuple[tuple[object, ...], object]] = {}

    def latest(self, make: Callable[P, R], *arguments: P.args, **_: P.kwargs) -> R:
        """The result of `make`, which is called again only if the arguments changed."""
        before = self._latest.get(make)
        if before is None or before[0] != arguments:
            self._latest.pop(make, None)  # two of them need not fit in memory
            before = self._latest[make] = (arguments, make(*arguments, **_))
        return cast("R", before[1])


class Message(BaseModel):
    """Unchangeable; a field that is not known is refused. Bytes are Base64 in JSON."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64"
    )


class JobProgress(Message):
    """The progress of a job.

    Attributes:
        fraction: the fraction of the job, in [0, 1].
        text_bytes, tokens: the amounts done so far, in jobs that take text or tokens.
        engine: the engine that tokenizes, in words.
    """

    fraction: float
    text_bytes: int = 0
    tokens: int = 0
    engine: str = ""


Report = Callable[[JobProgress], None]


class JobResult(Message):
    """The result of a job, and how long the worker took."""

    seconds: float = 0.0


class MadePart(JobResult):
    """A finished part of an output that is made from published datasets; its size in bytes."""

    documents: int
    tokens: int
    size: int


class Failure(Message):
    """Why a job failed: the name of an error of `streaming_ext.base.errors`, or `InternalError`."""

    error: str
    message: str


class Answer(Message, Generic[R]):
    """One line from a worker; exactly one field is set."""

    progress: JobProgress | None = None
    result: R | None = None
    failure: Failure | None = None


class Job(Message, Generic[R]):
    """The task of one worker; `R` is its result.

    Attributes:
        RESULT: the type of the result.
    """

    RESULT: ClassVar[type[BaseModel]] = MadePart

    def do(self, cache: WorkerCache, report: Report) -> R:
        """Do the job, in a worker.

        Args:
            cache: the objects that the worker keeps from job to job.
            report: called with the progress.

        Raises:
            ShardmillError: the job failed.
        """
        raise NotImplementedError

    def to_line(self) -> bytes:
        """The job and its class on one line of JSON."""
        kind = json.dumps(f"{type(self).__module__}:{type(self).__qualname__}")
        return f'{{"kind":{kind},"job":{self.model_dump_json()}}}\n'.encode()

    @staticmethod
    def from_line(line: bytes) -> "Job[Any]":
        """The job that `to_line` wrote; the module of its class is imported."""
        value = json.loads(line)
        module, _, name = value["kind"].partition(":")
        kind: type[Job[Any]] = getattr(importlib.import_module(module), name)
        return kind.model_validate_json(json.dumps(value["job"]))

    def read_answer(self, line: bytes) -> Answer[R]:
        """Read a line that the worker answers this job with."""
        return Answer[self.RESULT].model_validate_json(line)  # type: ignore[name-defined]
