"""What passes on a worker's pipes, whatever the job is.

A job is typed by its result: `Job[FetchedPart]` is answered with a `FetchedPart`.
"""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

HELD = b"\n"  # what goes with the file descriptors that a worker is to hold, before any job
R = TypeVar("R")


class Message(BaseModel):
    """Unchangeable; a field that is not known is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class JobProgress(Message):
    """How far the job in hand is.

    Attributes:
        fraction: of the job, in [0, 1].
        text_bytes, tokens: done so far in this job; only of those that take text or tokens.
    """

    fraction: float
    text_bytes: int = 0
    tokens: int = 0


class MadePart(Message):
    """A part of an output that is made of published ones, recorded; its size in bytes."""

    documents: int
    tokens: int
    size: int
    seconds: float


class Failure(Message):
    """Why a job failed: the name of an error of `streaming_ext.errors`, or `InternalError`."""

    error: str
    message: str


class Answer(Message, Generic[R]):
    """One line from a worker; exactly one of the fields is there."""

    progress: JobProgress | None = None
    result: R | None = None
    failure: Failure | None = None


class Job(Message, Generic[R]):
    """A piece of work for a worker; `R` is what it is answered with."""

    def read_answer(self, line: bytes) -> Answer[R]:
        """Read a line that the worker answers this job with."""
        raise NotImplementedError
