"""A build: an output in progress, its parts, and the parts that are left to do.

Sharding, both phases of a shuffle, extending, importing, exporting, copying, merging and taking a
subset are builds. A build defines the identity of the output, the work on a part, and how the parts
become one output; `tasks.core.engine.lifecycle` and `tasks.core.engine.run` do everything else.
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
        name: the name that Prefect and the terminal show.
        fetches: True if the step brings the part's sources to this host.
        moves: True if the step waits for a network, so that separate workers do it.
    """

    name: str
    fetches: bool = False
    moves: bool = False


class DoJob(Protocol):
    """A function that has a worker do a job."""

    def __call__(self, job: Job[R]) -> R:
        """Have a worker do the job, and return the result.

        Raises:
            ShardmillError: the job failed.
        """
        ...


class PartWork(ABC):
    """The work on one part: its steps, and what they have made so far.

    Args:
        scratch: the folder for work in progress.
        steps: the steps, in order.
    """

    def __init__(self, scratch: Path, steps: Sequence[Step]) -> None:
        self.scratch, self.steps = scratch, tuple(steps)

    @abstractmethod
    def do(self, step: Step, do_job: DoJob) -> PartTimes | None:
        """Do a step; return the times of the part once all its steps are done.

        Raises:
            ShardmillError: a job failed.
        """

    def clean_up(self) -> None:
        """Remove the files on scratch that are not needed once a part is done or has failed."""
        shutil.rmtree(self.scratch, ignore_errors=True)


class Words(NamedTuple):
    """Words for people: while parts are made, when all are made, and for the task that follows.

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
        shared: True if a file may hold further bytes after those of a part.
        hashed: True if the bytes are compared with their hashes before the run, not later.
    """

    storage: Storage
    parts: Mapping[int, Sequence[Stretch]]
    shared: bool = False
    hashed: bool = True


class Published(NamedTuple):
    """The files that turn all parts into one output.

    Attributes:
        manifest: the path of the manifest.
        data: the content of the manifest.
        files: the size of every other file that the output must hold, by its path.
        after: the content of files that are put after the manifest, by their paths.
    """

    manifest: str
    data: bytes
    files: Mapping[str, int]
    after: Mapping[str, bytes] = {}


@dataclass(frozen=True, kw_only=True)
class Build(ABC):
    """An output in progress.

    Attributes:
        config: the means of the work.
        kind: the command that makes the output.
        parts: all parts; the index of a part is its number.
        todo: the numbers of the parts that are left to do.
        published: True if the output is complete.
        done: the finished parts, as they were when the build was compared with the output.
        scratch: the folder for work in progress.
    """

    config: Execution
    kind: str
    parts: tuple[Part, ...]
    todo: tuple[int, ...] = ()
    published: bool = False
    done: Recorded | None = None
    scratch: Path

    at_least: ClassVar[int] = 1  # workers, if fewer are configured

    @property
    def first_job(self) -> Job[Any] | None:
        """A job that loads what the jobs of parts need, after `prepare` has put that on scratch."""
        return None

    @property
    @abstractmethod
    def words(self) -> Words:
        """The words for people."""

    @property
    @abstractmethod
    def identity(self) -> BaseModel:
        """All facts known before the work that decide the bytes of the output."""

    @abstractmethod
    def is_published(self, output: Storage) -> bool:
        """Return whether the output has the manifest of this build; other files may be missing.

        Raises:
            ConfigMismatchError: it has the manifest of another build.
        """

    @abstractmethod
    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """Return the parts that earlier runs did.

        Args:
            output: the output, which is read.
            published: the result of `is_published`.

        Raises:
            ConfigMismatchError: a part was made with another configuration or from other sources.
        """

    @abstractmethod
    def prepare(self, output: Storage) -> None:
        """Remove leftovers of killed runs, and put on scratch what all workers need."""

    @abstractmethod
    def work_on(self, number: int, output: Storage) -> PartWork:
        """Begin the work on a part."""

    @abstractmethod
    def finish(self, output: Storage, on_status: OnStatus) -> "Published | Build":
        """Put the files that belong to no part; return what is put last, or the next phase.

        Args:
            output: the output, which holds all parts.
            on_status: a function that is called with a description of each next step.
        """

    def beside(self, output: Storage) -> Mapping[str, int]:
        """Return the sizes of the files that a published dataset holds beside its parts."""
        return recorded_sizes(beside_parts(read_manifest(output)))

    @property
    def manifest_path(self) -> str:
        """The path of the file whose existence makes the output complete."""
        return MANIFEST

    @property
    def kept(self) -> Path:
        """The folder on scratch that a resumed run uses again."""
        return self.scratch / "kept"

    def part_scratch(self, number: int) -> Path:
        """Return the folder for a part's work in progress."""
        return self.scratch / f"{number:05}"

    def with_again(self, parts: frozenset[int]) -> Self:
        """Return the build with some more parts to be made again."""
        return replace(self, todo=tuple(sorted({*self.todo, *parts})))


@dataclass(frozen=True, kw_only=True)
class DerivedBuild(Build):
    """A build of an output from published datasets: each part is one job.

    Attributes:
        jobs: the job of each part.
    """

    jobs: Sequence[Job[MadePart]] = ()

    def prepare(self, output: Storage) -> None:
        """Do nothing: workers read the datasets, and a file has the same name in every run."""

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
