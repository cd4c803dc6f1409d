"""The one configuration of an export: the same object in command line, YAML and flow parameters."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator

from streaming_ext.storage.secrets import require_no_secrets
from tasks.core.exports.contract import ExportOptions
from tasks.core.exports.formats import FORMATS


class ExportConfig(BaseModel):
    """What to export, as what, where to, and with which means.

    `workers` and `scratch` never decide a byte.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    workers: int = Field(
        default_factory=lambda: os.cpu_count() or 1,
        gt=0,
        le=1024,
        description="Worker processes; default: one a core.",
    )
    scratch: Annotated[
        str | None,
        Field(
            description="Folder for work in progress; default: beside a local output, else in "
            "the temporary folder."
        ),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _no_secret(cls, given: Any) -> Any:
        """Refuse a URL that holds a secret before anything keeps or repeats it."""
        values = given if isinstance(given, Mapping) else {"config": given}
        for name, value in values.items():
            require_no_secrets(name, "config")
            require_no_secrets(value, str(name))
        return given

    @field_validator("format")
    @classmethod
    def _known_format(cls, name: str) -> str:
        if name not in FORMATS:
            raise ValueError(f"must be one of {', '.join(FORMATS)}")
        return name

    @property
    def options(self) -> ExportOptions:
        """What decides the bytes beside the dataset and the format."""
        return ExportOptions(
            max_file_size=None if self.max_file_size is None else int(self.max_file_size),
            rows=self.rows,
            sequence_length=self.sequence_length,
            provenance=self.provenance,
        )
