"""The configurations of copies and merges: the same objects in command line and flow parameters."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from streaming_ext.storage.secrets import require_no_secrets

DATASETS = Field(min_length=2, description="Folders or URLs of published datasets, in this order.")


Workers = Annotated[int, Field(gt=0, le=1024, description="Worker processes; default: one a core.")]
Scratch = Annotated[
    str | None,
    Field(
        description="Folder for work in progress; default: beside a local output, else in "
        "the temporary folder."
    ),
]


def cores() -> int:
    """How many worker processes there are unless a number is given."""
    return os.cpu_count() or 1


class WithoutSecrets(BaseModel):
    """A configuration that nothing keeps a secret of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_secret(cls, given: Any) -> Any:
        """Refuse a URL that holds a secret before anything keeps or repeats it."""
        values = given if isinstance(given, Mapping) else {"config": given}
        for name, value in values.items():
            require_no_secrets(name, "config")
            require_no_secrets(value, str(name))
        return given


class CopyConfig(WithoutSecrets):
    """What to copy, and where to."""

    dataset: Annotated[
        str, Field(min_length=1, description="Folder or URL of a published dataset or export.")
    ]
    output: Annotated[
        str,
        Field(min_length=1, description="Where the copy goes: a folder, s3://, gs:// or az://."),
    ]
    workers: Workers = Field(default_factory=cores)
    scratch: Scratch = None


class MergeConfig(WithoutSecrets):
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
    workers: Workers = Field(default_factory=cores)
    scratch: Scratch = None
