"""The configuration of a run of `shard`: one object in command line, YAML and flow parameters."""

from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.text.options import Options, TextOptions
from streaming_ext.text.text_hashes import UNICODE
from tasks.core.options import (
    Deduplication,
    ExecutionOnHosts,
    Fetching,
    FilteredByTexts,
    Order,
    Output,
)


class Selection(Options):
    """The choice of sources."""

    heading: ClassVar[str] = "Input"

    nodes: Annotated[int | None, Field(gt=0, le=100_000)] = None
    """Number of nodes that each make their own dataset of some of the sources."""
    node_rank: Annotated[int | None, Field(ge=0, validate_default=True)] = None
    """Which of them to make, from 0; see docs/how-to/node-partitions.md."""

    @field_validator("node_rank")
    @classmethod
    def _known_node(cls, rank: int | None, info: ValidationInfo) -> int | None:
        nodes = info.data.get("nodes")
        if (rank is None) != (nodes is None):
            raise ValueError("goes with --nodes, and that with --node-rank")
        if rank is not None and nodes is not None and rank >= nodes:
            raise ValueError(f"must be below --nodes {nodes}")
        return rank


class ShardConfig(
    ExecutionOnHosts,
    Deduplication,
    Order,
    Output,
    Fetching,
    Selection,
    FilteredByTexts,
    TextOptions,
):
    """The sources, the dataset to make of them, and how the work is done.

    Only the sources, the two sizes of parts, `nodes` with `node_rank`, and what `spec` takes decide
    the bytes of the dataset (with `shuffle`, the sizes of parts do not); `workers`, `scratch`,
    `engine`, `executor` and `partitions` never do.
    """

    arguments: ClassVar[tuple[str, ...]] = ("sources",)

    def spec(self, tokenizer: TokenizerIdentity) -> DatasetSpec:
        """The fields of the configuration that decide the bytes.

        Raises:
            UsageError: a shard of this size holds no sample, or there are no such evaluation texts.
            SourceError, StorageError: the evaluation texts cannot be read.
        """
        folds = self.deduplicate == "normalized" or bool(self.exclude_texts)
        return self.spec_with(
            **self.spec_fields,
            tokenizer=tokenizer,
            shuffle=self.shuffle,
            shuffle_seed=self.shuffle_seed or 0,
            deduplicate=self.deduplicate,
            near=self.near,
            unicode=UNICODE if folds else None,
            exclude=self.excluded_texts(mark_only=self.mark_only),
        )
