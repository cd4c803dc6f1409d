"""The messages in the pipes of a worker.

A job is typed by its result: `Job[FetchedPart]` is answered with a `FetchedPart`. The message names
the class of the job, so a new kind of job is just a class.
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
    """The objects that a worker keeps from job to job, so that it need not open or read them again.

    Attributes:
        memories: the memory into which shards are written or read, by one job at a time.
        storage: a function that returns the storage at a URL, with its open connections.
    """

    def __init__(self) -> None:
        self.memories: Memories = {}
        self.storage: Callable[[str], Storage] = cache(open_storage)
        self._latest: dict[object, tuple[tuple[object, ...], object]] = {}

    def latest(self, make: Callable[P, R], *arguments: P.args, **_: P.kwargs) -> R:
        """Return the result of `make`, which is called again only if the arguments changed."""
        before = self._latest.get(make)
        if before is None or before[0] != arguments:
            self._latest.pop(make, None)  # free it first: two need not fit in memory
            before = self._latest[make] = (arguments, make(*arguments, **_))
        return cast("R", before[1])


class Message(BaseModel):
    """A frozen message; unknown fields are refused, and bytes are Base64 in JSON."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64"
    )


class JobProgress(Message):
    """The progress of a job.

    Attributes:
        fraction: the fraction of the job that is done, in [0, 1].
        text_bytes, tokens: the text and tokens that are done, in jobs that have them.
        engine: the engine that tokenizes, in words.
    """

    fraction: float
    text_bytes: int = 0
    tokens: int = 0
    engine: str = ""


Report = Callable[[JobProgress], None]


class JobResult(Message):
    """The result of a job, and the time that the worker took."""

    seconds: float = 0.0


class MadePart(JobResult):
    """A finished part of an output that is made from published datasets; its size in bytes."""

    documents: int
    tokens: int
    size: int


class Failure(Message):
    """The error of a job; `error` is the name of a class in `streaming_ext.base.errors`."""

    error: str
    message: str


class Answer(Message, Generic[R]):
    """One line from a worker; exactly one field is set."""

    progress: JobProgress | None = None
    result: R | None = None
    failure: Failure | None = None


class Job(Message, Generic[R]):
    """A job for one worker; `R` is its result.

    Attributes:
        RESULT: the type of the result.
    """

    RESULT: ClassVar[type[BaseModel]] = MadePart

    def do(self, cache: WorkerCache, report: Report) -> R:
        """Do the job, in a worker.

        Args:
            cache: the objects that the worker keeps from job to job.
            report: a function that is called with the progress.

        Raises:
            ShardmillError: the job failed.
        """
        raise NotImplementedError

    def to_line(self) -> bytes:
        """Return the job and its class on one line of JSON."""
        kind = json.dumps(f"{type(self).__module__}:{type(self).__qualname__}")
        return f'{{"kind":{kind},"job":{self.model_dump_json()}}}\n'.encode()

    @staticmethod
    def from_line(line: bytes) -> "Job[Any]":
        """Return the job that `to_line` wrote; import the module of its class."""
        value = json.loads(line)
        module, _, name = value["kind"].partition(":")
        kind: type[Job[Any]] = getattr(importlib.import_module(module), name)
        return kind.model_validate_json(json.dumps(value["job"]))

    def read_answer(self, line: bytes) -> Answer[R]:
        """Parse a line with which the worker answers this job."""
        return Answer[self.RESULT].model_validate_json(line)  # type: ignore[name-defined]
