"""The configurations of copies and merges: the same objects in command line and flow parameters."""

from typing import Annotated

from pydantic import Field

from tasks.core.config_fields import Scratch, WithoutSecrets, Workers, cores

DATASETS = Field(min_length=2, description="Folders or URLs of published datasets, in this order.")


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
