"""A build: an output in the making, its parts, and which of them are left to do.

Sharding, both phases of a shuffle, extending, importing, exporting, copying, merging and taking a
subset are builds. A build says what the output is going to be, how a part is worked on, and what
makes all parts one output; `tasks.core.engine.lifecycle` and `tasks.core.engine.run` do everything
else.
"""

import platform
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from pydantic import BaseModel

from streaming_ext.format.layout import MANIFEST
from streaming_ext.format.reading import read_manifest
from streaming_ext.store import Storage
from streaming_ext.text.parts import Part
from tasks.core.engine.output_files import Stretch
from tasks.core.options import Execution
from tasks.core.reading.dataset_files import beside_parts, recorded_sizes
from tasks.core.reporting.report import PartTimes
from tasks.core.workers.messages import Job, MadePart, R

OnStatus = Callable[[str], None]


class Step(NamedTuple):
    """One task of a part.

    Attributes:
        name: the name that people see.
        fetches: it brings the part's sources to this host.
        moves: it waits for a network, so workers of its own do it.
    """

    name: str
    fetches: bool = False
    moves: bool = False


class DoJob(Protocol):
    """Has a worker do a job."""

    def __call__(self, job: Job[R]) -> R:
        """Do the job; returns its result.

        Raises:
            ShardmillError: the job failed.
        """
        ...


class PartWork(ABC):
    """The work on one part: steps that follow one another, and what they have made so far.

    Args:
        scratch: the folder for work in progress.
        steps: the steps, in order.
    """

    def __init__(self, scratch: Path, steps: Sequence[Step]) -> None:
        self.scratch, self.steps = scratch, tuple(steps)

    @abstractmethod
    def do(self, step: Step, do_job: DoJob) -> PartTimes | None:
        """Do a step; returns what the part took once all its steps are done.

        Raises:
            ShardmillError: a job failed.
        """

    def clean_up(self) -> None:
        """Remove from scratch what is not needed once a part is done or has failed."""
        shutil.rmtree(self.scratch, ignore_errors=True)


class Words(NamedTuple):
    """A run in words: while parts are made, when all are made, and after the parts.

    Attributes:
        finish_task: the name of the task that follows all parts.
    """

    doing: str
    done: str
    finishing: str = "publishing"
    finish_task: str = "publish"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The parts that are recorded as done.

    Attributes:
        storage: the storage that holds their bytes.
        parts: the bytes of each part, by its number.
        shared: files may hold more after the bytes of a part.
        hashed: the bytes are compared with their hashes before the run; else later.
    """

    storage: Storage
    parts: Mapping[int, Sequence[Stretch]]
    shared: bool = False
    hashed: bool = True


class Published(NamedTuple):
    """Everything that turns all parts into one output.

    Attributes:
        manifest: path of the file that is put last.
        data: the content of the manifest.
        files: size of every other file that the output must hold, by its path.
        after: files that follow the manifest, by their paths.
    """

    manifest: str
    data: bytes
    files: Mapping[str, int]
    after: Mapping[str, bytes] = {}


@dataclass(frozen=True, kw_only=True)
class Build(ABC):
    """An output in the making.

    Attributes:
        config: the means of the work.
        kind: the command that makes it.
        parts: all of them; the index is the part's number.
        todo: numbers of the parts that are left to do.
        published: the output holds all of this already.
        done: the finished parts, as they were when the build was compared with the output.
        scratch: folder for work in progress.
    """

    config: Execution
    kind: str
    parts: tuple[Part, ...]
    todo: tuple[int, ...] = ()
    published: bool = False
    done: Recorded | None = None
    scratch: Path

    at_least: ClassVar[int] = 1  # parts at the same time, however few workers are configured

    @property
    def first_job(self) -> Job[Any] | None:
        """A job that loads what the jobs of parts need, once `prepare` has put it on scratch."""
        return None

    @property
    @abstractmethod
    def words(self) -> Words:
        """The run in words, for people."""

    @property
    @abstractmethod
    def identity(self) -> BaseModel:
        """Everything known before the work that decides the bytes of the output."""

    @abstractmethod
    def is_published(self, output: Storage) -> bool:
        """Return whether the output has the manifest of this build; other files may be missing.

        Raises:
            ConfigMismatchError: it has another one.
        """

    @abstractmethod
    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """The parts that earlier runs did.

        Args:
            output: the output, which is read.
            published: the answer of `is_published`.

        Raises:
            ConfigMismatchError: a part is of another configuration or from other sources.
        """

    @abstractmethod
    def prepare(self, output: Storage) -> None:
        """Remove what killed runs left of parts, and put on scratch what all workers need."""

    @abstractmethod
    def work_on(self, number: int, output: Storage) -> PartWork:
        """Begin the work on a part."""

    @abstractmethod
    def finish(self, output: Storage, on_status: OnStatus) -> "Published | Build":
        """Put what belongs to no part; returns what is put last, or the next phase.

        Args:
            output: the output, which holds all parts.
            on_status: called with what is done next.
        """

    def beside(self, output: Storage) -> Mapping[str, int]:
        """The sizes of the files that a published dataset holds beside its parts."""
        return recorded_sizes(beside_parts(read_manifest(output)))

    @property
    def manifest_path(self) -> str:
        """The file that makes the output count."""
        return MANIFEST

    @property
    def kept(self) -> Path:
        """The folder on scratch that a resumed run uses again."""
        return self.scratch / "kept"

    def part_scratch(self, number: int) -> Path:
        """The folder for a part's work in progress."""
        return self.scratch / f"{number:05}"

    def with_again(self, parts: frozenset[int]) -> Self:
        """The same, with some parts to be made again."""
        return replace(self, todo=tuple(sorted({*self.todo, *parts})))


@dataclass(frozen=True, kw_only=True)
class DerivedBuild(Build):
    """An output that is made of published datasets: each part is one job.

    Attributes:
        jobs: the job of each part.
    """

    jobs: Sequence[Job[MadePart]] = ()

    def prepare(self, output: Storage) -> None:
        """Do nothing: workers read the datasets, and put files under names that do not change."""

    def work_on(self, number: int, output: Storage) -> PartWork:
        """Begin the work on a part."""
        return _OneJob(self, number)


class _OneJob(PartWork):
    """The work on a part that is one job."""

    def __init__(self, build: DerivedBuild, number: int) -> None:
        super().__init__(build.part_scratch(number), [Step(build.kind)])
        self._part, self._job = build.parts[number], build.jobs[number]

    def do(self, step: Step, do_job: DoJob) -> PartTimes:
        made = do_job(self._job)
        return PartTimes(
            part=self._part.number,
            source=self._part.source,
            host=platform.node(),
            text_bytes=made.size,
            tokens=made.tokens,
            documents=made.documents,
            shard_bytes=made.size,
            write_seconds=made.seconds,
        )
