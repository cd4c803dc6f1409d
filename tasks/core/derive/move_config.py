"""The configurations of copies and merges: the same objects in command line and flow parameters."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ByteSize, Field, field_validator, model_validator

from streaming_ext.base.errors import UsageError
from streaming_ext.base.units import parse_count
from streaming_ext.text.options import Options
from tasks.core.derive.export_format import ExportOptions
from tasks.core.derive.formats import FORMATS
from tasks.core.options import Execution


class Export(Options):
    """What to export, as what, and where to."""

    format: Annotated[
        str,
        Field(
            description=f"What to write: {', '.join(FORMATS)}; docs/how-to/export.md tells of each."
        ),
    ]
    dataset: Annotated[
        str, Field(min_length=1, description="Folder or URL of a published dataset.")
    ]
    output: Annotated[
        str,
        Field(min_length=1, description="Where the export goes: a folder, s3://, gs:// or az://."),
    ]
    max_file_size: Annotated[
        ByteSize | None,
        Field(
            ge=1024,
            description="Upper bound of a file, where the format may have several; about, where a "
            "sample of WebDataset is a document; default: as its users have it.",
        ),
    ] = None
    rows: Annotated[
        Literal["samples", "documents"],
        Field(description="What a sample of WebDataset is: as many tokens each, or a document."),
    ] = "samples"
    sequence_length: Annotated[
        int | None,
        Field(
            gt=0,
            le=2**24,
            description="Tokens a sample of WebDataset; default: those of the dataset.",
        ),
    ] = None
    provenance: Annotated[
        bool,
        Field(description="With documents as rows: where each comes from, as JSON beside its ids."),
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
        """What decides the bytes beside the dataset and the format."""
        return ExportOptions(
            max_file_size=None if self.max_file_size is None else int(self.max_file_size),
            rows=self.rows,
            sequence_length=self.sequence_length,
            provenance=self.provenance,
        )


class Subset(Options):
    """Which documents of which dataset, and where they go."""

    dataset: Annotated[
        str, Field(min_length=1, description="Folder or URL of a published dataset.")
    ]
    output: Annotated[
        str,
        Field(min_length=1, description="Where the subset goes: a folder, s3://, gs:// or az://."),
    ]
    documents: Annotated[
        int | None, Field(gt=0, description="How many documents, of all splits together.")
    ] = None
    tokens: Annotated[
        str | None,
        Field(
            description="As many whole documents as have at most so many tokens (10M), "
            "end-of-text ids counted."
        ),
    ] = None
    seed: Annotated[
        int | None,
        Field(ge=0, lt=2**63, description="Of the draw of the documents; 0 unless given."),
    ] = None
    first: Annotated[
        bool, Field(description="Take the first documents in their order, and draw none.")
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
    def drawn_by(self) -> int | None:
        """The seed; None where the first ones are taken."""
        return None if self.first else self.seed or 0


class SubsetConfig(Execution, Subset):
    """A subset, and with which means it is made."""

    arguments: ClassVar[tuple[str, ...]] = ("dataset",)


DATASETS = Field(min_length=2, description="Folders or URLs of published datasets, in this order.")


class Copy(Options):
    """What to copy, and where to."""

    dataset: Annotated[
        str, Field(min_length=1, description="Folder or URL of a published dataset or export.")
    ]
    output: Annotated[
        str,
        Field(min_length=1, description="Where the copy goes: a folder, s3://, gs:// or az://."),
    ]


class CopyConfig(Execution, Copy):
    """A copy, and with which means it is made."""

    arguments: ClassVar[tuple[str, ...]] = ("dataset", "output")


class Merge(Options):
    """Which datasets become one, and where that goes."""

    datasets: Annotated[tuple[str, ...], DATASETS]
    output: Annotated[
        str,
        Field(min_length=1, description="Where the dataset goes: a folder, s3://, gs:// or az://."),
    ]
    repeats: Annotated[
        bool,
        Field(description="Take datasets that were made of the same source files: texts repeat."),
    ] = False


class MergeConfig(Execution, Merge):
    """A merge, and with which means it is made."""

    arguments: ClassVar[tuple[str, ...]] = ("datasets",)
