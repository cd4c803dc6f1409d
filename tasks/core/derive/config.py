"""The configurations of exports, copies, merges and subsets."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ByteSize, Field, field_validator, model_validator

from streaming_ext.base.errors import UsageError
from streaming_ext.base.units import parse_count
from streaming_ext.text.options import Options
from tasks.core.derive.export_records import ExportOptions
from tasks.core.derive.formats import FORMATS
from tasks.core.options import Execution

Dataset = Annotated[str, Field(min_length=1, description="Folder or URL of a published dataset.")]
Output = Annotated[
    str, Field(min_length=1, description="Where the output goes: a folder, s3://, gs:// or az://.")
]


class Export(Options):
    """What to export, as what, and where to."""

    format: Annotated[
        str, Field(description=f"What to write: {', '.join(FORMATS)}; see docs/how-to/export.md.")
    ]
    dataset: Dataset
    output: Output
    max_file_size: Annotated[
        ByteSize | None,
        Field(
            ge=1024,
            description="Upper bound of a file; default: the format's usual size.",
        ),
    ] = None
    rows: Annotated[
        Literal["samples", "documents"],
        Field(description="What a WebDataset sample is."),
    ] = "samples"
    sequence_length: Annotated[
        int | None,
        Field(
            gt=0,
            le=2**24,
            description="Tokens per sample of WebDataset; default: that of the dataset.",
        ),
    ] = None
    provenance: Annotated[
        bool,
        Field(
            description="With documents as rows: source and row of each, as JSON beside its ids."
        ),
    ] = False

    @field_validator("format")
    @classmethod
    def _known_format(cls, name: str) -> str:
        if name not in FORMATS:
            raise ValueError(f"must be one of {', '.join(FORMATS)}")
        return name


class ExportConfig(Execution, Export):
    """An export, and with which means it is made."""

    arguments: ClassVar[tuple[str, ...]] = ("format", "dataset")

    @property
    def options(self) -> ExportOptions:
        """What decides the bytes besides the dataset and the format."""
        return ExportOptions.model_validate(self.model_dump(include={*ExportOptions.model_fields}))


class Subset(Options):
    """Which documents of which dataset, and where they go."""

    dataset: Dataset
    output: Output
    documents: Annotated[
        int | None, Field(gt=0, description="How many documents, of all splits together.")
    ] = None
    tokens: Annotated[
        str | None,
        Field(description="Number of tokens, such as 10M; whole documents only."),
    ] = None
    seed: Annotated[
        int | None,
        Field(ge=0, lt=2**63, description="Seed of the random choice of documents; default: 0."),
    ] = None
    first: Annotated[
        bool, Field(description="Take the first documents in order, not random ones.")
    ] = False

    @field_validator("tokens", mode="before")
    @classmethod
    def _count(cls, given: Any) -> Any:
        try:
            parse_count(given, name="tokens")
        except UsageError as error:
            raise ValueError(str(error)) from error
        return None if given is None else str(given)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.documents is None) == (self.tokens is None):
            raise ValueError("give one of --documents and --tokens")
        if self.first and self.seed is not None:
            raise ValueError("--first draws nothing: leave out --seed")
        return self

    @property
    def most_tokens(self) -> int | None:
        """Tokens that the documents may have."""
        return parse_count(self.tokens, name="tokens")

    @property
    def chosen_by(self) -> int | None:
        """The seed; None if the first documents are taken."""
        return None if self.first else self.seed or 0


class SubsetConfig(Execution, Subset):
    """A subset, and with which means it is made."""

    arguments: ClassVar[tuple[str, ...]] = ("dataset",)


class Copy(Options):
    """What to copy, and where to."""

    dataset: Annotated[
        str, Field(min_length=1, description="Folder or URL of a published dataset or export.")
    ]
    output: Output


class CopyConfig(Execution, Copy):
    """A copy, and with which means it is made."""

    arguments: ClassVar[tuple[str, ...]] = ("dataset", "output")


class Merge(Options):
    """Which datasets become one, and where that goes."""

    datasets: Annotated[
        tuple[str, ...],
        Field(min_length=2, description="Folders or URLs of published datasets, in this order."),
    ]
    output: Output
    repeats: Annotated[
        bool, Field(description="Accept datasets of the same source files: texts repeat.")
    ] = False


class MergeConfig(Execution, Merge):
    """A merge, and with which means it is made."""

    arguments: ClassVar[tuple[str, ...]] = ("datasets",)
