"""The plan of a run that makes a dataset of sources: what everything that works on it knows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from streaming_ext.base.errors import command
from streaming_ext.format.layout import TOKENIZER_FOLDER
from streaming_ext.format.manifest import NodePartition
from streaming_ext.format.record import PartRecord
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.engine.build import Build, Recorded
from tasks.core.options import EngineChoice
from tasks.core.reporting.report import ReportedCounts
from tasks.core.shard.base_dataset import BaseDataset
from tasks.core.shuffle.records import MergeInput, SpillRecord


def to_grow(storage: Storage) -> str:
    """Advice for a run with sources that a published dataset does not hold."""
    return f"New sources are added to it by {command('extend', storage, 'SOURCE...')}."


# What is done with each part. With a shuffle, `sort` sorts it and `merge` merges.
PhaseName = Literal["shard", "import", "sort", "merge"]


@dataclass(frozen=True, kw_only=True)
class RecordedParts(Recorded):
    """The parts that are recorded as done, with the records."""

    records: Mapping[int, PartRecord | SpillRecord]


@dataclass(frozen=True, kw_only=True)
class RunPlan(Build):
    """Everything that a run needs to know before its first job.

    Attributes:
        phase: the work on each part.
        engine: the engine that tokenizes, as it is configured; None if the sources hold ids.
        check_sources: each remote file is compared with the hash of its store.
        sources: the sources as the user named them.
        tokenizer: the tokenizer of the dataset.
        earlier: counts of the parts that are done already.
        node_partition: the partition of the node, if each makes a dataset of some of the sources.
        first_part: number of the first part that is made; those before are of a published dataset.
        first_sources: number of the source of each part's first span, for a shuffle.
        merge_input: the input of all parts of the second phase.
        base: the published dataset that the run extends: its parts are the first ones.
    """

    phase: PhaseName
    spec: DatasetSpec
    engine: EngineChoice | None
    check_sources: bool = False
    sources: tuple[str, ...] = ()
    tokenizer: Tokenizer
    earlier: tuple[ReportedCounts, ...] = ()
    node_partition: NodePartition | None = None
    first_part: int = 0
    first_sources: tuple[int, ...] = ()
    merge_input: MergeInput | None = None
    base: BaseDataset | None = None
    done: RecordedParts | None = None

    @property
    def is_made(self) -> bool:
        """True if all parts are made, and only publishing is left."""
        return self.merge_input is not None and self.merge_input.index is None

    @property
    def note(self) -> str:
        """A remark on the tokenizer for people; empty for none."""
        if self.base is not None or self.engine is None:
            return ""
        return self.tokenizer.note

    @property
    def tokenizer_folder(self) -> Path:
        """The folder of the tokenizer that all workers load."""
        return self.scratch / TOKENIZER_FOLDER

    @property
    def downloads(self) -> Path:
        """The folder for fetched source files; what is in it outlives a kill."""
        return self.kept

    def with_again(self, parts: frozenset[int]) -> Self:
        """The same, with some parts to be made again."""
        again = super().with_again(parts)
        earlier = tuple(counts for counts in self.earlier if counts.part not in parts)
        return replace(again, earlier=earlier)
