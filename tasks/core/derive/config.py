"""The configurations of the commands that work on published datasets."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from streaming_ext.base.errors import nearest
from streaming_ext.base.units import parse_count
from streaming_ext.format.condition import Condition, understood
from streaming_ext.text.options import Options, Several
from tasks.core.derive.export_format import ExportOptions
from tasks.core.derive.formats import FORMATS
from tasks.core.options import Deduplication, EvaluationOptions, Execution

Dataset = Annotated[str, Field(min_length=1, description="Folder or URL of a published dataset.")]
Output = Annotated[
    str, Field(min_length=1, description="Location of the output: a folder, s3://, gs:// or az://.")
]


class _Exported(Options):
    """The dataset to export, the format and the output."""

    format: Annotated[
        str, Field(description=f"Format to write: {', '.join(FORMATS)}; see docs/how-to/export.md.")
    ]
    dataset: Dataset
    output: Output

    @field_validator("format")
    @classmethod
    def _known_format(cls, name: str) -> str:
        if name not in FORMATS:
            raise ValueError(
                f"must be one of {', '.join(FORMATS)}, got {name!r}.{nearest(name, FORMATS)}"
            )
        return name


class ExportConfig(Execution, ExportOptions, _Exported):
    """An export, and the means of the work."""

    arguments: ClassVar[tuple[str, ...]] = ("format", "dataset")


class _Chosen(Options):
    """The dataset, the choice of its documents, and the output."""

    dataset: Dataset
    output: Output
    where: str | None = None
    """Take documents for which "score >= 3 and tokens < 900" holds."""
    documents: Annotated[int | None, Field(gt=0)] = None
    """Number of documents, over all splits."""
    tokens: Annotated[str | None, Field(coerce_numbers_to_str=True)] = None
    """Number of tokens, such as 10M; whole documents only."""
    seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    """Seed of the random choice of documents; default: 0."""
    first: bool = False
    """Take the first documents in order, not random ones."""

    _understood = field_validator("where")(understood)

    @property
    def takes_all(self) -> bool:
        """True if no number of documents or tokens limits the choice."""
        return self.documents is None and self.tokens is None

    @property
    def condition(self) -> Condition | None:
        """The parsed `where`."""
        return None if self.where is None else Condition(self.where)

    @property
    def most(self) -> int:
        """The most documents, or tokens, that the subset may have."""
        return self.documents or parse_count(self.tokens, name="tokens") or 2**63 - 1

    @property
    def chosen_by(self) -> int | None:
        """The seed; None if the first documents or all documents are taken."""
        return None if self.first or self.takes_all else self.seed or 0


class _Distinct(Deduplication):
    """The near copies among the documents."""

    heading: ClassVar[str] = "Options"

    deduplicate: Literal["near"] | None = None
    """Leave out near copies of earlier documents, by their token ids."""


class SubsetConfig(Execution, _Distinct, _Chosen):
    """A subset, and the means of the work."""

    arguments: ClassVar[tuple[str, ...]] = ("dataset",)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.documents is not None and self.tokens is not None:
            raise ValueError("give one of --documents and --tokens")
        if self.takes_all and self.where is None and self.deduplicate is None:
            raise ValueError("give --where, --documents, --tokens or --deduplicate")
        if self.seed is not None and (self.first or self.takes_all):
            why = "--first draws" if self.first else "without --documents or --tokens it draws"
            raise ValueError(f"{why} nothing: leave out --seed")
        return self


class _Annotated(Options):
    """The dataset that gets columns, and the table that has them."""

    dataset: Annotated[str, Field(min_length=1)]
    """The dataset: a folder, s3://, gs:// or az://."""
    table: Annotated[str | None, Field(min_length=1)] = None
    """Parquet, CSV or JSON Lines file: source, row, and the columns to add."""
    key: Annotated[str | None, Field(min_length=1)] = None
    """Column that names a document in both, in place of source and row."""
    partial: bool = False
    """Accept documents without a row, and rows without a document."""


class AnnotateConfig(Execution, EvaluationOptions, _Annotated):
    """Columns to add, and the means of the work."""

    arguments: ClassVar[tuple[str, ...]] = ("dataset", "table")

    exclude_texts: Several = ()
    """In place of a table: count those of these texts that share words with each document."""
    characters: bool = False
    """In place of a table: count the characters of each document."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if [self.table is not None, bool(self.exclude_texts), self.characters].count(True) != 1:
            raise ValueError("give one of TABLE, --exclude-texts and --characters")
        if self.table is None and (self.key is not None or self.partial):
            raise ValueError("--key and --partial go with a TABLE")
        return self

    @property
    def output(self) -> str:
        """The dataset, to which the values are added."""
        return self.dataset


class _Copied(Options):
    """The dataset to copy, and the output."""

    dataset: Annotated[str, Field(min_length=1)]
    """Folder or URL of a published dataset or export."""
    output: Output


class CopyConfig(Execution, _Copied):
    """A copy, and the means of the work."""

    arguments: ClassVar[tuple[str, ...]] = ("dataset", "output")


class _Merged(Options):
    """The datasets that become one, and the output."""

    datasets: Annotated[tuple[str, ...], Field(min_length=2)]
    """Folders or URLs of published datasets, in this order."""
    output: Output
    repeats: bool = False
    """Accept datasets of the same source files: texts repeat."""


class MergeConfig(Execution, _Merged):
    """A merge, and the means of the work."""

    arguments: ClassVar[tuple[str, ...]] = ("datasets",)
