"""A build: an output in the making, its parts, and which of them are left to do.

Sharding, both phases of a shuffle, extending, importing, exporting, copying, merging and taking a
subset are builds. A build says what the output is going to be, how a worker makes a part, and what
makes all parts one output; `tasks.core.engine.engine` does everything else.
"""

import platform
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, Field

from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.format.layout import MANIFEST
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.schema import Count, FileRecord, Hash
from streaming_ext.store import Storage
from streaming_ext.text.parts import Part
from tasks.core.options import Execution
from tasks.core.reading.dataset_files import recorded_sizes
from tasks.core.reading.dataset_layout import beside_parts
from tasks.core.reporting.report import PartTimes
from tasks.core.workers.messages import Job, MadePart

OnStatus = Callable[[str], None]
# Inside the output: no absolute path, no step upwards.
InsidePath = Annotated[
    str, Field(pattern=r"^(\.?[A-Za-z0-9_-][A-Za-z0-9._-]*/)*\.?[A-Za-z0-9_-][A-Za-z0-9._-]*$")
]


class Step(NamedTuple):
    """One task of a part.

    Attributes:
        name: as people see it.
        fetches: it brings the part's sources to this host; left out if this host has them already.
        moves: it waits for a network, so workers of its own do it.
    """

    name: str
    fetches: bool = False
    moves: bool = False


class Words(NamedTuple):
    """What a run does, for people: with the parts, when all is done, and after the parts."""

    doing: str
    done: str
    finishing: str = "publishing"


class Stretch(NamedTuple):
    """Consecutive bytes of a file and their content hash."""

    path: InsidePath
    start: Count
    size: Count
    xxh128: Hash

    @classmethod
    def of(cls, file: FileRecord) -> Self:
        """All bytes of a file."""
        return cls(file.path, 0, file.size, file.xxh128)


def file_sizes(stretches: Iterable[Stretch]) -> dict[str, int]:
    """How long each file is at least, by its path."""
    sizes: dict[str, int] = {}
    for path, start, size, _ in stretches:
        sizes[path] = max(sizes.get(path, 0), start + size)
    return sizes


class Recorded(NamedTuple):
    """The parts that are recorded as done.

    Attributes:
        storage: holds their bytes.
        parts: the bytes of each part, by its number.
        records: of the parts, if the build looks at them again.
        shared: whether files may hold more after the bytes of a part.
        hashed: whether the bytes are compared with their hashes before the run; else later.
    """

    storage: Storage
    parts: Mapping[int, Sequence[Stretch]]
    records: Mapping[int, Any] = {}
    shared: bool = False
    hashed: bool = True


class Published(NamedTuple):
    """What turns all parts into one output.

    Attributes:
        manifest: path of the file that is put last.
        data: its content.
        files: size of every other file that the output must hold, by its path.
        after: files that follow the manifest, by their paths.
    """

    manifest: str
    data: bytes
    files: Mapping[str, int]
    after: Mapping[str, bytes] = {}


@dataclass(frozen=True, kw_only=True)
class Build(ABC):
    """What is to be made, and what is left to do.

    Attributes:
        config: how the work is done.
        phase: what is done with each part.
        parts: all of them; the index is the part's number.
        jobs: what a worker does for each part, if that is one step that is known before the work.
        todo: numbers of the parts that are left to do.
        published: whether the output holds all of this already.
        done: the finished parts, as they were when the build was compared with the output.
        scratch: folder for work in progress.
    """

    config: Execution
    phase: str
    parts: tuple[Part, ...]
    jobs: tuple[Job[Any], ...] = ()
    todo: tuple[int, ...] = ()
    published: bool = False
    done: Recorded | None = None
    scratch: Path

    at_least: ClassVar[int] = 1  # parts at the same time, however few workers are configured

    @property
    @abstractmethod
    def words(self) -> Words:
        """The run in words, for people."""

    @property
    @abstractmethod
    def identity(self) -> BaseModel:
        """What decides every byte of the output, as far as it is known before the work."""

    @abstractmethod
    def is_published(self, output: Storage) -> bool:
        """Whether the output has the manifest of this build, perhaps without some of its files.

        Raises:
            ConfigMismatchError: it has another one.
        """

    @abstractmethod
    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """The parts that earlier runs did.

        Args:
            output: is read.
            published: what `is_published` says.

        Raises:
            ConfigMismatchError: a part is of another configuration or from other sources.
        """

    def job(self, step: str, number: int, output: Storage, results: Mapping[str, Any]) -> Job[Any]:
        """What a worker is to do.

        Args:
            step: which one of `steps`.
            number: of the part.
            output: takes it.
            results: of the steps before, by name.
        """
        return self.jobs[number]

    @abstractmethod
    def finish(self, output: Storage, on_status: OnStatus) -> "Published | Build":
        """Put what belongs to no part; returns what is put last, or the next phase.

        Args:
            output: holds all parts.
            on_status: called with what is done next.
        """

    def steps(self, output: Storage) -> tuple[Step, ...]:
        """The tasks of each part, in order."""
        return (Step(self.phase),)

    def times(self, number: int, results: Mapping[str, Any]) -> PartTimes:
        """What the report says of a part.

        Args:
            number: of the part.
            results: of all steps.
        """
        made: MadePart = results[self.phase]
        return PartTimes(
            part=number,
            source=self.parts[number].source,
            host=platform.node(),
            text_bytes=made.size,
            tokens=made.tokens,
            documents=made.documents,
            shard_bytes=made.size,
            write_seconds=made.seconds,
        )

    def beside(self, output: Storage) -> Mapping[str, int]:
        """The sizes of the files that a published output holds beside its parts: of a dataset."""
        return recorded_sizes(beside_parts(read_manifest(output)))

    def require_same(self, identity: Mapping[str, Any], *, where: str) -> None:
        """Refuse to resume an output that was started as something else.

        Args:
            identity: `identity` of what was started, as JSON.
            where: names it in messages.

        Raises:
            ConfigMismatchError: naming every field that differs.
        """
        had, wanted = _flat(identity), _flat(self.identity.model_dump(mode="json"))
        differences = [
            f"{name}: the output has {had.get(name)!r}, this run asks for {wanted.get(name)!r}"
            for name in dict.fromkeys((*had, *wanted))
            if had.get(name) != wanted.get(name)
        ]
        if differences:
            raise ConfigMismatchError(
                f"{where} was started or made as something else; nothing was changed there:\n  "
                + "\n  ".join(differences)
                + "\nUse the old values, or another --output. If the dataset was extended since, "
                "use an empty folder."
            )

    def resumed(self, records: Mapping[int, Any]) -> Self:
        """The same with what the records of finished parts say."""
        return self

    def remove_leftovers(self, output: Storage) -> None:  # noqa: B027  (most builds do nothing)
        """Remove what killed runs left of parts that are not recorded."""

    def require_room(self, output: Storage) -> None:  # noqa: B027  (most builds do nothing)
        """Refuse before the work what is sure not to fit on the output."""

    def prepare(self) -> None:  # noqa: B027  (most builds do nothing)
        """Put on scratch what all workers of this host need."""

    def published_to(self, output: Storage, on_status: OnStatus) -> None:  # noqa: B027  (most builds do nothing)
        """Do what follows the manifest."""

    def forget(self, number: int, results: Mapping[str, Any]) -> None:
        """Remove from scratch what is not needed once a part is done or has failed."""
        shutil.rmtree(self.part_scratch(number), ignore_errors=True)

    def report_fields(self, output: Storage) -> dict[str, Any]:
        """What the report of a published output says beyond the sums over the parts."""
        return {}

    @property
    def engine(self) -> str | None:
        """What tokenizes, if anything does, as it is configured."""
        return None

    @property
    def note(self) -> str:
        """What people are told before the work; empty for nothing."""
        return ""

    @property
    def executor(self) -> str:
        """Where the parts are worked on."""
        return "here"

    @property
    def manifest_path(self) -> str:
        """The file that makes the output count."""
        return MANIFEST

    @property
    def kept(self) -> Path:
        """The folder on scratch that is of use when the run is resumed."""
        return self.scratch / "kept"

    @property
    def kind(self) -> str:
        """Which command makes it."""
        return self.phase

    def part_scratch(self, number: int) -> Path:
        """The folder for a part's work in progress."""
        return self.scratch / f"{number:05}"

    def with_again(self, parts: frozenset[int]) -> Self:
        """The same, with some parts to be made again."""
        return replace(self, todo=tuple(sorted({*self.todo, *parts})))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
