"""Options that several commands have, a class for each group of them.

The configuration of a command inherits its groups. The fields of its last base stand first.
"""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from streaming_ext.dataset.compression import Compression
from streaming_ext.dataset.deduplicated.duplicates import Comparison
from streaming_ext.dataset.formats import DEFAULT_FORMAT, FORMATS, MAX_SHARD_BYTES
from streaming_ext.dataset.shuffled.keys import ShuffleUnit
from streaming_ext.errors import UsageError
from streaming_ext.storage.local_paths import require_possible_name, require_writable_name
from streaming_ext.storage.secrets import require_no_secrets
from streaming_ext.text.documents.options import FormatName, OnBadDocument
from streaming_ext.text.filters.filters import NAMES as FILTERS
from streaming_ext.text.filters.filters import Filters
from streaming_ext.units import size_text

_EXECUTOR = re.compile(r"here|prefect://[^/]+/[^/]+|dask(\+tls)?://[^/]+:\d+")

Columns = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
]


def _named(given: Any) -> Any:
    """Names that stand in a list, or in texts with commas between."""
    texts = (given,) if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return given
    return tuple(name.strip() for text in texts for name in text.split(","))


KeptColumns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_named)]


def cores() -> int:
    """How many worker processes there are unless a number is given."""
    return os.cpu_count() or 1


class Options(BaseModel):
    """A configuration that nothing keeps a secret of, with paths that there can be.

    Attributes:
        heading: above the fields of a class, in help texts.
        arguments: fields that the command line takes by their position.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    heading: ClassVar[str] = "Options"
    arguments: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Let the command line take only `arguments` by their position."""
        for name, field in cls.model_fields.items():
            field.kw_only = name not in cls.arguments

    @model_validator(mode="before")
    @classmethod
    def _no_secret(cls, given: Any) -> Any:
        """Refuse a URL that holds a secret before anything keeps or repeats it."""
        values = given if isinstance(given, Mapping) else {"config": given}
        for name, value in values.items():
            require_no_secrets(name, "config")
            # Of other kinds and names too: what is wrong with a value is told with the value.
            require_no_secrets(value, str(name))
        return given

    @field_validator(
        "output", "dataset", "datasets", "scratch", "tokenizer", mode="before", check_fields=False
    )
    @classmethod
    def _possible_paths(cls, given: Any, info: ValidationInfo) -> Any:
        """Refuse what could be written to nowhere before any work is done."""
        is_name = info.field_name == "tokenizer"  # it may be no path at all
        require = require_possible_name if is_name else require_writable_name
        for path in given if isinstance(given, list | tuple) else (given,):
            if isinstance(path, str):
                try:
                    require(path)
                except UsageError as error:
                    raise ValueError(str(error).removesuffix(".")) from error
        return given


class Execution(Options):
    """With which means; none of them decides a byte."""

    heading: ClassVar[str] = "Execution"

    workers: Annotated[
        int, Field(gt=0, le=1024, description="Worker processes a host; default: one a core.")
    ] = Field(default_factory=cores)
    scratch: Annotated[
        str | None,
        Field(
            description="Folder for work in progress; default: beside a local output, else in "
            "the temporary folder."
        ),
    ] = None


class ExecutionOnHosts(Execution):
    """The same for tokenizing, and where it is done."""

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

    @field_validator("executor")
    @classmethod
    def _known_executor(cls, executor: str, info: ValidationInfo) -> str:
        if not _EXECUTOR.fullmatch(executor):
            raise ValueError("must be here, prefect://FLOW/DEPLOYMENT or dask://HOST:PORT")
        if executor != "here" and info.data.get("nodes") is not None:
            raise ValueError("must be here with --nodes: each node prepares its own share itself")
        return executor


class Input(Options):
    """Files of text."""

    heading: ClassVar[str] = "Input"

    sources: Annotated[
        tuple[str, ...],
        Field(
            min_length=1,
            description="Files of text, folders, glob or brace patterns; also hf://, s3://, gs://, "
            "az:// and https:// URLs, or a dataset of the Hub, ORG/NAME.",
        ),
    ]


class Hub(Options):
    """What of a dataset of the Hub is read."""

    heading: ClassVar[str] = "Input"

    hub_config: Annotated[
        str | None,
        Field(description="Configuration of a dataset of the Hub, such as sample-10BT."),
    ] = None


class Parts(Options):
    """How source files are cut into parts, and fetched."""

    heading: ClassVar[str] = "Input"

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
    check_sources: Annotated[
        bool,
        Field(
            description="Fetch remote files whole and compare each with a hash of its store or the "
            "checksums in it; a file that has none is an error."
        ),
    ] = False

    @field_validator("min_part_size")
    @classmethod
    def _below_part_size(cls, size: ByteSize, info: ValidationInfo) -> ByteSize:
        most = info.data.get("part_size")
        if most is not None and size > most:
            raise ValueError(f"must be at most --part-size {size_text(most)}")
        return size


class Tokenizer(Options):
    """What turns text into ids."""

    heading: ClassVar[str] = "Input"

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


class Documents(Options):
    """What of a source file is a document, and what is kept of it."""

    heading: ClassVar[str] = "Input"

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
    keep_columns: Annotated[
        KeptColumns,
        Field(
            description="Columns, or paths such as meta.url, whose values are stored with the list "
            "of documents: language,url. Texts, numbers, True and False.",
        ),
    ] = ()

    @field_validator("keep_columns")
    @classmethod
    def _named_once(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise ValueError(f"{twice[0]!r} stands there twice")
        return columns


class FilterOptions(Options):
    """Which documents stay."""

    heading: ClassVar[str] = "Filters"

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

    @model_validator(mode="after")
    def _known_filters(self) -> Self:
        try:
            _ = self.filters
        except UsageError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def filters(self) -> Filters:
        """Which documents stay."""
        return Filters(**{name: getattr(self, name) for name in FILTERS})


class Output(Options):
    """Where a dataset goes, and its samples."""

    heading: ClassVar[str] = "Output"

    output: Annotated[
        str,
        Field(min_length=1, description="Where the dataset goes: a folder, s3://, gs:// or az://."),
    ]
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

    @field_validator("output_format")
    @classmethod
    def _known_format(cls, name: str) -> str:
        if name not in FORMATS:
            raise ValueError(f"must be {' or '.join(FORMATS)}")
        return name


class Order(Options):
    """What is decided when all documents are known: their order, and which are copies."""

    heading: ClassVar[str] = "Output"

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

    @field_validator("shuffle_seed")
    @classmethod
    def _of_a_shuffle(cls, seed: int | None, info: ValidationInfo) -> int | None:
        if seed is not None and "shuffle" in info.data and info.data["shuffle"] is None:
            raise ValueError("goes with --shuffle")
        return seed
