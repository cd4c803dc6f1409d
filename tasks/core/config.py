"""The configurations of `shard`, `extend` and `import`.

Each configuration is one object for the command line, YAML and flow parameters.
"""

from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from streaming_ext.format.spec import (
    DatasetSpec,
    IdType,
    ImportedIds,
    TokenizerIdentity,
    TokenSetName,
)
from streaming_ext.text.options import (
    HubOptions,
    Options,
    PartOptions,
    Several,
    TextOptions,
    TokenizerOptions,
)
from streaming_ext.text.text_hashes import UNICODE
from tasks.core.options import (
    Deduplication,
    Execution,
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
    """Number of the node to make, from 0; see docs/how-to/node-partitions.md."""

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

    Only the sources, the two sizes of parts, `nodes` with `node_rank`, and the fields in `spec`
    decide the bytes of the dataset; with `shuffle`, the sizes of parts do not. `workers`,
    `scratch`, `engine`, `executor` and `partitions` never do.
    """

    arguments: ClassVar[tuple[str, ...]] = ("sources",)

    def spec(self, tokenizer: TokenizerIdentity) -> DatasetSpec:
        """Return the fields of the configuration that decide the bytes.

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


class Extension(Options):
    """The dataset to extend, and the sources to add."""

    heading: ClassVar[str] = "Input"

    dataset: Annotated[str, Field(min_length=1)]
    """The dataset: a folder, s3://, gs:// or az://."""
    sources: Annotated[Several, Field(min_length=1)]
    """Sources to add, as for shard; files that it already holds are left out."""
    tokenizer: Annotated[str | None, Field(min_length=1)] = None
    """Tokenizer that the dataset was made with, if its own copy is lost."""


class ExtendConfig(ExecutionOnHosts, Fetching, PartOptions, HubOptions, Extension):
    """The extension of a dataset, and how the work is done.

    Of these fields, only the sources and the two sizes of parts decide the added bytes; the dataset
    decides the rest.
    """

    arguments: ClassVar[tuple[str, ...]] = ("dataset", "sources")

    @property
    def output(self) -> str:
        """The dataset, to which the parts are added."""
        return self.dataset


class Ids(Options):
    """The files that hold ids, and their format."""

    heading: ClassVar[str] = "Input"

    format: TokenSetName
    """Format of the files; see docs/how-to/import.md."""
    sources: Annotated[Several, Field(min_length=1)]
    """Files, folders, glob or brace patterns, or URLs, but no https://."""
    dtype: IdType | None = None
    """Type of an id, if the files do not say it."""


class ImportConfig(Execution, Output, Fetching, PartOptions, TokenizerOptions, Ids):
    """The files to import, the dataset to make of them, and how the work is done."""

    arguments: ClassVar[tuple[str, ...]] = ("format", "sources")

    tokenizer: Annotated[str, Field(min_length=1)]
    """Tokenizer that made the ids, named as for shard."""

    @property
    def imported(self) -> ImportedIds:
        """The options for reading ids."""
        return ImportedIds(set_format=self.format, dtype=self.dtype)

    def spec(self, tokenizer: TokenizerIdentity) -> DatasetSpec:
        """Return the fields of the configuration that decide the bytes.

        Raises:
            UsageError: a shard of this size holds no sample.
        """
        spec = DatasetSpec(
            **self.spec_fields,
            tokenizer=tokenizer,
            text_column="ids",  # has no meaning for ids
            imported=self.imported,
        )
        spec.shard_format.require_possible()
        return spec
