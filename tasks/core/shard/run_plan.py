"""A dataset that is made of sources: what all that works on it needs to know."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from streaming_ext.base.errors import command
from streaming_ext.format.layout import TOKENIZER_FOLDER
from streaming_ext.format.manifest import NodePartition
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.config import ShardConfig
from tasks.core.engine.build import Build
from tasks.core.reporting.report import PartCounts
from tasks.core.shard.base_dataset import BaseDataset
from tasks.core.shuffle.records import MergeInput


def to_grow(storage: Storage) -> str:
    """What to do if a run has sources that a published dataset does not hold."""
    return f"New sources are added to it by {command('extend', storage, 'SOURCE...')}."


# What is done with each part. With a shuffle, `sort` sorts it and `merge` merges.
PhaseName = Literal["shard", "import", "sort", "merge"]


@dataclass(frozen=True, kw_only=True)
class RunPlan(Build):
    """All that a run needs to know before its first job.

    Attributes:
        tokenizer: that the dataset is made with; None on hosts that find it on scratch.
        earlier: counts of the parts that are done already.
        node_partition: of the node, if each makes a dataset of some of the sources.
        first_part: number of the first part that is made; those before are of a published dataset.
        first_sources: number of the source of each part's first span, for a shuffle.
        merge_input: what the parts of the second phase are merged from.
        base: the published dataset that the run extends: its parts are the first ones.
    """

    config: ShardConfig
    phase: PhaseName
    spec: DatasetSpec
    tokenizer: Tokenizer | None = None
    earlier: tuple[PartCounts, ...] = ()
    node_partition: NodePartition | None = None
    first_part: int = 0
    first_sources: tuple[int, ...] = ()
    merge_input: MergeInput | None = None
    base: BaseDataset | None = None

    @property
    def is_made(self) -> bool:
        """Whether all parts are made, and only publishing is left."""
        return self.merge_input is not None and self.merge_input.index is None

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
