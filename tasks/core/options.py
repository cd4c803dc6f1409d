"""Options that several commands have, one class per group.

The configuration of a command inherits from its groups. The fields of the last base come first.
"""

import re
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    ByteSize,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from streaming_ext.base.errors import UsageError, option_name
from streaming_ext.base.threads import cores
from streaming_ext.format.compression import Compression
from streaming_ext.format.duplicates import Comparison
from streaming_ext.format.mds_index import MAX_SHARD_BYTES
from streaming_ext.format.spec import (
    DEFAULT_FORMAT,
    FORMATS,
    USUAL_COMPRESSION,
    ExcludedTexts,
    NearRule,
    OutputFormat,
    ShuffleMode,
)
from streaming_ext.text.options import Options, Several
from streaming_ext.writing.evaluation_texts import texts_in

EngineChoice = Literal["auto", "reference"]
_EXECUTOR = re.compile(r"here|prefect://[^/]+/[^/]+|dask(\+tls)?://[^/]+:\d+")


class Execution(Options):
    """The means of the work, which do not change any byte of the output."""

    heading: ClassVar[str] = "Execution"

    workers: Annotated[int, Field(gt=0, le=1024)] = Field(default_factory=cores)
    """Worker processes per host; default: one per core."""
    scratch: str | None = None
    """Folder for work in progress; default: beside the output, or temporary."""


class ExecutionOnHosts(Execution):
    """The engine that tokenizes, and the hosts that work."""

    engine: EngineChoice = "auto"
    """Fast engine, or the reference."""
    executor: str = "here"
    """here, prefect://FLOW/DEPLOYMENT or dask://HOST:PORT."""
    partitions: Annotated[int, Field(gt=0, le=1000)] = 16
    """Runs on a work pool; about four per host."""

    @field_validator("executor")
    @classmethod
    def _known_executor(cls, executor: str, info: ValidationInfo) -> str:
        if not _EXECUTOR.fullmatch(executor):
            raise ValueError("must be here, prefect://FLOW/DEPLOYMENT or dask://HOST:PORT")
        if executor != "here" and info.data.get("nodes") is not None:
            raise ValueError("must be here with --nodes: each node prepares its own sources")
        return executor


class Fetching(Options):
    """The way in which remote source files are fetched."""

    heading: ClassVar[str] = "Input"

    check_sources: bool = False
    """Compare each remote file with the hash of its store."""


class Output(Options):
    """The location of a dataset, and its samples."""

    heading: ClassVar[str] = "Output"

    output: Annotated[str, Field(min_length=1)]
    """Location of the dataset: a folder, s3://, gs:// or az://."""
    sequence_length: Annotated[int, Field(gt=0, le=2**24)] = 2048
    """Tokens per sample."""
    holdout_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.001
    """Fraction of the documents kept out of training."""
    holdout_seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    """Seed of the choice of these documents."""
    shard_size: Annotated[ByteSize, Field(ge=1024, le=MAX_SHARD_BYTES)] = ByteSize(64 * 2**20)
    """Upper bound of an uncompressed shard."""
    output_format: Annotated[
        OutputFormat, Field(description=f"Format of shards: {', '.join(FORMATS)}.")
    ] = DEFAULT_FORMAT
    compression: str | None = None
    """zstd:1, gz:6, bz2 or none; default: zstd:1, for webdataset none."""

    @field_validator("compression")
    @classmethod
    def _known_compression(cls, text: str | None) -> str | None:
        if text is None:
            return None
        try:
            Compression.parse(text)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return text

    @property
    def spec_fields(self) -> dict[str, Any]:
        """The fields of `DatasetSpec` that these options decide."""
        return {
            "sequence_length": self.sequence_length,
            "holdout_fraction": self.holdout_fraction,
            "holdout_seed": self.holdout_seed,
            "shard_size": int(self.shard_size),
            "compression": self.compression or USUAL_COMPRESSION.get(self.output_format, "none"),
            "output_format": self.output_format,
        }


class Order(Options):
    """The order of all documents."""

    heading: ClassVar[str] = "Output"

    shuffle: ShuffleMode | None = None
    """Put documents in a random order, over all parts."""
    shuffle_seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    """Seed of this order; default: 0."""

    @field_validator("shuffle_seed")
    @classmethod
    def _of_a_shuffle(cls, seed: int | None, info: ValidationInfo) -> int | None:
        if seed is not None and "shuffle" in info.data and info.data["shuffle"] is None:
            raise ValueError("goes with --shuffle")
        return seed


class Deduplication(Options):
    """The copies among all documents that are left out."""

    heading: ClassVar[str] = "Output"

    deduplicate: Comparison | None = None
    """Leave out copies of earlier texts."""
    near_similarity: Annotated[float | None, Field(gt=0, le=1)] = None
    """Least similarity of near copies; default: 0.8."""
    near_bands: Annotated[int | None, Field(gt=0, le=64)] = None
    """Bands of a sketch, of which near copies have one in common; default: 14."""
    near_rows: Annotated[int | None, Field(gt=0, le=32)] = None
    """Bins of a band; default: 8."""
    near_ngram: Annotated[int | None, Field(gt=0, le=64)] = None
    """Token ids of an n-gram, by which near copies are compared; default: 5."""

    @property
    def near(self) -> NearRule | None:
        """The rule for near copies, if they are left out."""
        if self.deduplicate != "near":
            return None
        given = {name: getattr(self, f"near_{name}") for name in NearRule.model_fields}
        usual = {"similarity": 0.8, "bands": 14, "rows": 8, "ngram": 5}
        return NearRule(**{**usual, **{name: x for name, x in given.items() if x is not None}})

    @field_validator("near_similarity", "near_bands", "near_rows", "near_ngram")
    @classmethod
    def _of_near_copies(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("deduplicate", "near") != "near":
            raise ValueError("goes with --deduplicate near")
        return value


class EvaluationOptions(Options):
    """Evaluation texts, with which documents are compared."""

    heading: ClassVar[str] = "Filters"

    exclude_texts: Several = ()
    """Drop documents that hold an n-gram of the words of these texts; files or patterns."""
    exclude_column: Annotated[Several, Field(min_length=1, validate_default=True)] = cast(
        "Several", "text"
    )
    """Column of these texts; several join."""
    exclude_ngram: Annotated[int, Field(gt=0)] = 13
    """Words of an n-gram."""

    @model_validator(mode="after")
    def _given_together(self) -> Self:
        fields = type(self).model_fields
        for name in ("exclude_column", "exclude_ngram", "mark_only"):
            usual = fields[name].default if name in fields else None
            given = getattr(self, name, None) not in (usual, (usual,))
            if given and not self.exclude_texts:
                raise ValueError(f"{option_name(name)} goes with --exclude-texts")
        return self

    def excluded_texts(self, *, mark_only: bool) -> ExcludedTexts | None:
        """Return the evaluation texts as a specification pins them, or None if there are none."""
        if not self.exclude_texts:
            return None
        return texts_in(
            self.exclude_texts, self.exclude_column, self.exclude_ngram, mark_only=mark_only
        ).rule


class FilteredByTexts(EvaluationOptions):
    """Evaluation texts, with which no document may have much in common."""

    mark_only: bool = False
    """Count such documents, and keep them."""
