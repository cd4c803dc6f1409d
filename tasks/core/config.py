"""The one configuration of a run: the same object in command line, YAML and flow parameters."""

import re
from typing import Annotated, Literal, Self, cast

from pydantic import ByteSize, Field, ValidationInfo, field_validator, model_validator

from streaming_ext.dataset.deduplicated.duplicates import Comparison
from streaming_ext.dataset.formats import (
    DEFAULT_FORMAT,
    FORMATS,
    MAX_SHARD_BYTES,
    USUAL_COMPRESSION,
)
from streaming_ext.dataset.shuffled.keys import ShuffleUnit
from streaming_ext.dataset.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.errors import UsageError
from streaming_ext.text.documents.options import SEPARATOR, FormatName, OnBadDocument, ReadOptions
from streaming_ext.text.filters.filters import NAMES as FILTERS
from streaming_ext.text.filters.filters import Filters
from streaming_ext.text.normal_form import UNICODE
from tasks.core.config_fields import CheckedConfig, Columns, KeptColumns, Scratch, Workers, cores

_EXECUTOR = re.compile(r"here|prefect://[^/]+/[^/]+|dask(\+tls)?://[^/]+:\d+")


class ShardConfig(CheckedConfig):
    """What to shard, into what, and with which means.

    Only the sources, the two sizes of parts, `nodes` with `node_rank`, and what `spec` takes decide
    the bytes of the dataset (with `shuffle`, the sizes of parts do not); `workers`, `scratch`,
    `engine`, `executor` and `partitions` never do.
    """

    sources: Annotated[
        tuple[str, ...],
        Field(
            min_length=1,
            description="Files of text, folders, glob or brace patterns; also hf://, s3://, gs://, "
            "az:// and https:// URLs, or a dataset of the Hub, ORG/NAME.",
        ),
    ]
    output: Annotated[
        str,
        Field(min_length=1, description="Where the dataset goes: a folder, s3://, gs:// or az://."),
    ]
    tokenizer: Annotated[
        str,
        Field(
            min_length=1,
            description="tiktoken encoding (gpt2), .tiktoken rank file, tokenizer.json, "
            "or Hugging Face repository.",
        ),
    ]
    eot_token: Annotated[
        str | None, Field(description="End-of-text token, where the tokenizer does not tell.")
    ] = None
    pattern: Annotated[
        str | None,
        Field(
            description="Pretokenization of a .tiktoken file whose name does not tell: the name "
            "of an encoding (gpt2) or a regular expression."
        ),
    ] = None
    text_column: Annotated[
        Columns,
        Field(
            min_length=1,
            validate_default=True,
            description="Column that holds the documents, or a path such as meta.text; several "
            "are joined, each given with the option again.",
        ),
    ] = cast("Columns", "text")
    text_separator: Annotated[
        str,
        Field(
            description=r"What stands between the texts of several columns; \n is a new line, \t a "
            "tab."
        ),
    ] = r"\n\n"
    format: Annotated[
        FormatName | None,
        Field(description="Format of all source files; default: as the name of each tells."),
    ] = None
    on_bad_document: Annotated[
        OnBadDocument,
        Field(
            description="Whether a document that cannot be read fails its file, or is left out, "
            "counted and listed."
        ),
    ] = "fail"
    where: Annotated[
        str | None,
        Field(
            description="Keep only documents for which this holds of their other columns, such as "
            "\"language == 'en' and language_score >= 0.65\"."
        ),
    ] = None
    min_bytes: Annotated[
        int | None, Field(gt=0, description="Drop documents of fewer bytes of text.")
    ] = None
    min_characters: Annotated[
        int | None, Field(gt=0, description="Drop documents of fewer characters.")
    ] = None
    min_tokens: Annotated[
        int | None, Field(gt=0, description="Drop documents of fewer tokens.")
    ] = None
    max_tokens: Annotated[int | None, Field(gt=0, description="Drop documents of more tokens.")] = (
        None
    )
    keep_columns: Annotated[
        KeptColumns,
        Field(
            description="Columns, or paths such as meta.url, whose values are stored with the list "
            "of documents: language,url. Texts, numbers, True and False.",
        ),
    ] = ()
    sequence_length: Annotated[int, Field(gt=0, le=2**24, description="Tokens a sample.")] = 2048
    holdout_fraction: Annotated[
        float, Field(ge=0, lt=1, description="Share of the documents kept out of training.")
    ] = 0.001
    holdout_seed: Annotated[
        int, Field(ge=0, lt=2**64, description="Seed that decides which documents those are.")
    ] = 0
    shard_size: Annotated[
        ByteSize,
        Field(ge=1024, le=MAX_SHARD_BYTES, description="Upper bound of an uncompressed shard."),
    ] = ByteSize(64 * 2**20)
    output_format: Annotated[
        str,
        Field(
            description=f"How rows lie in shards: {', '.join(FORMATS)}; docs/formats.md tells of "
            "each."
        ),
    ] = DEFAULT_FORMAT
    compression: Annotated[
        str | None,
        Field(
            description="Codec and level of the shards: zstd:1, gz:6, bz2, none; default: zstd:1, "
            "and none for webdataset."
        ),
    ] = None
    shuffle: Annotated[
        ShuffleUnit | None,
        Field(
            description="Put the documents of each split in a random order, over all parts: a "
            "permutation, the same for any number of workers and any size of parts."
        ),
    ] = None
    shuffle_seed: Annotated[
        int | None,
        Field(ge=0, lt=2**63, description="Seed that decides which order that is; default: 0."),
    ] = None
    deduplicate: Annotated[
        Comparison | None,
        Field(
            description="Leave out documents whose text is that of an earlier one: exact, or "
            "normalized (case-folded, NFC, white space collapsed)."
        ),
    ] = None
    workers: Workers = Field(default_factory=cores)
    scratch: Scratch = None
    part_size: Annotated[
        ByteSize,
        Field(
            ge=1024,
            description="Cut larger source files into parts of so many bytes, where that can be.",
        ),
    ] = ByteSize(2**30)
    min_part_size: Annotated[
        ByteSize,
        Field(
            ge=0,
            validate_default=True,
            description="Take small source files together until a part has so many bytes.",
        ),
    ] = ByteSize(0)
    hub_config: Annotated[
        str | None,
        Field(description="Configuration of a dataset of the Hub, such as sample-10BT."),
    ] = None
    max_files: Annotated[
        int | None, Field(gt=0, description="Take only the first so many source files.")
    ] = None
    nodes: Annotated[
        int | None,
        Field(gt=0, le=100_000, description="Nodes of which each keeps its own share of the data."),
    ] = None
    node_rank: Annotated[
        int | None,
        Field(
            ge=0,
            validate_default=True,
            description="Whose share to make here, from 0; see docs/training.md.",
        ),
    ] = None
    engine: Annotated[
        Literal["auto", "reference"],
        Field(description="Tokenize with the fast engine where it is exact, or never."),
    ] = "auto"
    executor: Annotated[
        str,
        Field(
            description="Where the files are worked on: here; prefect://FLOW/DEPLOYMENT, a run of "
            "it a partition, on the hosts of its work pool; or dask://HOST:PORT.",
        ),
    ] = "here"
    partitions: Annotated[
        int,
        Field(
            gt=0,
            le=1000,
            description="Runs that a prefect:// executor splits the files into; some four a host.",
        ),
    ] = 16

    @field_validator("keep_columns")
    @classmethod
    def _named_once(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise ValueError(f"{twice[0]!r} stands there twice")
        return columns

    @field_validator("shuffle_seed")
    @classmethod
    def _of_a_shuffle(cls, seed: int | None, info: ValidationInfo) -> int | None:
        if seed is not None and "shuffle" in info.data and info.data["shuffle"] is None:
            raise ValueError("goes with --shuffle")
        return seed

    @field_validator("node_rank")
    @classmethod
    def _known_node(cls, rank: int | None, info: ValidationInfo) -> int | None:
        nodes = info.data.get("nodes")
        if (rank is None) != (nodes is None):
            raise ValueError("goes with --nodes, and that with --node-rank")
        if rank is not None and nodes is not None and rank >= nodes:
            raise ValueError(f"must be below --nodes {nodes}")
        return rank

    @field_validator("executor")
    @classmethod
    def _known_executor(cls, executor: str, info: ValidationInfo) -> str:
        if not _EXECUTOR.fullmatch(executor):
            raise ValueError("must be here, prefect://FLOW/DEPLOYMENT or dask://HOST:PORT")
        if executor != "here" and info.data.get("nodes") is not None:
            raise ValueError("must be here with --nodes: each node prepares its own share itself")
        return executor

    @model_validator(mode="after")
    def _known_filters(self) -> Self:
        try:
            _ = self.filters
        except UsageError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def light(self) -> bool:
        """Whether workers do without the engines that tokenize."""
        return False

    @property
    def filters(self) -> Filters:
        """Which documents stay."""
        return Filters(**{name: getattr(self, name) for name in FILTERS})

    @property
    def read_options(self) -> ReadOptions:
        """What is read of the source files."""
        return ReadOptions(
            columns=self.text_column,
            separator=self.text_separator.replace(r"\n", "\n").replace(r"\t", "\t"),
            source_format=self.format,
            on_bad_document=self.on_bad_document,
            filters=self.filters,
            kept=self.keep_columns,
        )

    def spec(self, tokenizer: TokenizerIdentity) -> DatasetSpec:
        """The part of the configuration that decides the bytes.

        Raises:
            UsageError: a shard of this size holds no sample.
        """
        read = self.read_options
        joined = len(read.columns) > 1  # else a separator decides nothing
        spec = DatasetSpec(
            text_column=read.columns if joined else read.columns[0],
            text_separator=read.separator if joined else SEPARATOR,
            source_format=read.source_format,
            on_bad_document=read.on_bad_document,
            filters=read.filters,
            keep_columns=read.kept,
            sequence_length=self.sequence_length,
            holdout_fraction=self.holdout_fraction,
            holdout_seed=self.holdout_seed,
            shard_size=int(self.shard_size),
            compression=self.compression or USUAL_COMPRESSION.get(self.output_format, "none"),
            output_format=self.output_format,
            tokenizer=tokenizer,
            shuffle=self.shuffle,
            shuffle_seed=self.shuffle_seed or 0,
            deduplicate=self.deduplicate,
            unicode=UNICODE if self.deduplicate == "normalized" else None,
        )
        spec.shard_format.require_possible()
        return spec
