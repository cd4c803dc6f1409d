"""The configurations of copies and merges: the same objects in command line and flow parameters."""

from typing import Annotated, ClassVar

from pydantic import Field

from streaming_ext.text.options import Options
from tasks.core.options import Execution

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
