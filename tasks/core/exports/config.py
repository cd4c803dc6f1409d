"""The one configuration of an export: the same object in command line, YAML and flow parameters."""

from typing import Annotated, ClassVar, Literal

from pydantic import ByteSize, Field, field_validator

from streaming_ext.text.options import Options
from tasks.core.exports.contract import ExportOptions
from tasks.core.exports.formats import FORMATS
from tasks.core.options import Execution


class Export(Options):
    """What to export, as what, and where to."""

    format: Annotated[
        str,
        Field(description=f"What to write: {', '.join(FORMATS)}; docs/formats.md tells of each."),
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
