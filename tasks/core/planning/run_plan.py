"""The plan of a run: all that it needs to know before its first job."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from streaming_ext.dataset.layout import TOKENIZER_FOLDER
from streaming_ext.dataset.manifest import Manifest, NodeShare
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.text.parts.part import Part
from tasks.core.config import ShardConfig
from tasks.core.outputs.taken_over import Finished, Stretch
from tasks.core.reading.records import read_records
from tasks.core.reporting.report import PartCounts
from tasks.core.shuffle.gathering import Gathering
from tasks.core.storage import Storage

_DOWNLOADS = "sources"

# What is done with each part: all at once; with a shuffle, sorted in the first stage and merged in
# the second one. `import` is `shard` from ids; the others are of other flows.
StageName = Literal["shard", "import", "scatter", "gather", "export", "copy", "merge", "subset"]


class _HasWorkers(Protocol):
    @property
    def workers(self) -> int: ...


class PartsPlan(Protocol):
    """What working through parts takes of a plan, whatever is made of them."""

    @property
    def config(self) -> _HasWorkers:
        """Says how many are worked on at once."""
        ...

    @property
    def todo(self) -> Sequence[int]:
        """Numbers of the parts that are to be done."""
        ...

    @property
    def stage(self) -> StageName:
        """Whose steps each of them goes through."""
        ...

    def part(self, number: int) -> Part:
        """A part and what it is made of."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """The generation of a dataset that a run extends.

    Attributes:
        manifest: of it.
        file: the manifest as it lies on the output.
    """

    manifest: Manifest
    file: FileRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """All that a run needs to know before its first job.

    Attributes:
        parts: all of them; the index is the part's number.
        todo: parts without a record on the output.
        published: the output holds this very dataset, whole.
        earlier: counts of the parts that have a record already.
        share: whose part of all sources these are, where each node keeps its own.
        stage: which one this is the plan of.
        first_part: number of the first one that is made; those before are of a published dataset.
        first_sources: number of the source of each part's first piece, where there is a shuffle.
        gathering: what the parts of the second stage are gathered from.
        parent: what is extended, where a published dataset is: its parts are the first ones.
    """

    config: ShardConfig
    spec: DatasetSpec
    parts: tuple[Part, ...]
    todo: tuple[int, ...]
    published: bool
    scratch: Path
    earlier: tuple[PartCounts, ...] = ()
    share: NodeShare | None = None
    stage: StageName = "shard"
    first_part: int = 0
    first_sources: tuple[int, ...] = ()
    gathering: Gathering | None = None
    parent: Parent | None = None

    @property
    def is_one_stage(self) -> bool:
        """Whether each part is packed as soon as its source is read."""
        return self.stage in {"shard", "import"}

    @property
    def tokenizer_folder(self) -> Path:
        """Where the tokenizer lies that all workers load."""
        return self.scratch / TOKENIZER_FOLDER

    @property
    def downloads(self) -> Path:
        """The folder for source files on their way; what is in it outlives a kill."""
        return self.scratch / _DOWNLOADS

    def part(self, number: int) -> Part:
        """A part and what it is made of."""
        return self.parts[number]

    def finished(self, output: Storage) -> Finished:
        """What earlier runs wrote of the parts that are not to be done.

        What the first of two stages leaves is compared with its hashes where the second one reads
        it, and what the second one made before, in `arrange`.
        """
        made = range(self.first_part, len(self.parts)) if self.is_one_stage else ()
        done = set(made) - set(self.todo)
        records = read_records(output, done)
        return Finished(output, {part: map(Stretch.of, records[part].files()) for part in done})

    def with_again(self, parts: frozenset[int]) -> "RunPlan":
        """The same, with some parts to be made again."""
        return replace(
            self,
            todo=tuple(sorted({*self.todo, *parts})),
            earlier=tuple(counts for counts in self.earlier if counts.part not in parts),
        )

    def part_scratch(self, part: int) -> Path:
        """The folder for a part's work in progress."""
        return self.scratch / f"{part:05}"
