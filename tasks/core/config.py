"""The configuration of a run of `shard`: one object in command line, YAML and flow parameters."""

from typing import Annotated, ClassVar, Self, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator

from streaming_ext.format.spec import DatasetSpec, ExcludedTexts, TokenizerIdentity
from streaming_ext.text.options import Options, Several, TextOptions
from streaming_ext.text.text_hashes import UNICODE
from streaming_ext.writing.evaluation_texts import evaluation_rule
from tasks.core.options import Deduplication, ExecutionOnHosts, Fetching, Order, Output


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


class EvaluationOptions(Options):
    """Evaluation texts, with which no document may have much in common."""

    heading: ClassVar[str] = "Filters"

    exclude_texts: Several = ()
    """Drop documents that hold an n-gram of the words of these texts; files or patterns."""
    exclude_column: Annotated[Several, Field(min_length=1, validate_default=True)] = cast(
        "Several", "text"
    )
    """Column of these texts; several join."""
    exclude_ngram: Annotated[int, Field(gt=0)] = 13
    """Words of an n-gram."""
    mark_only: bool = False
    """Count such documents, and keep them."""

    @model_validator(mode="after")
    def _given_together(self) -> Self:
        for name in ("exclude_column", "exclude_ngram", "mark_only"):
            usual = EvaluationOptions.model_fields[name].get_default(call_default_factory=True)
            given = getattr(self, name) not in (usual, (usual,))
            if given and not self.exclude_texts:
                raise ValueError(f"--{name.replace('_', '-')} goes with --exclude-texts")
        return self

    @property
    def excluded_texts(self) -> ExcludedTexts | None:
        """The evaluation texts as a specification pins them; None if there are none."""
        if not self.exclude_texts:
            return None
        return evaluation_rule(
            self.exclude_texts,
            self.exclude_column,
            self.exclude_ngram,
            mark_only=self.mark_only,
        )


class ShardConfig(
    ExecutionOnHosts,
    Deduplication,
    Order,
    Output,
    Fetching,
    Selection,
    EvaluationOptions,
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
            exclude=self.excluded_texts,
        )
