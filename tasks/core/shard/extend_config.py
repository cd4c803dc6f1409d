"""The configuration of an extension: one object in command line, YAML and flow parameters."""

from typing import Annotated, ClassVar

from pydantic import Field

from streaming_ext.text.options import HubOptions, Options, PartOptions, Several
from tasks.core.options import ExecutionOnHosts, Fetching


class Extension(Options):
    """The dataset to extend, and the sources to add."""

    heading: ClassVar[str] = "Input"

    dataset: Annotated[str, Field(min_length=1)]
    """The dataset: a folder, s3://, gs:// or az://."""
    sources: Annotated[Several, Field(min_length=1)]
    """What to add, as for shard; files it already holds are left out."""
    tokenizer: Annotated[str | None, Field(min_length=1)] = None
    """The tokenizer that it was made with, if it lost its own copy."""


class ExtendConfig(ExecutionOnHosts, Fetching, PartOptions, HubOptions, Extension):
    """An extension, and how it is made.

    Only the sources and the two sizes of parts decide the bytes that are added; all else that does
    is the dataset's own.
    """

    arguments: ClassVar[tuple[str, ...]] = ("dataset", "sources")

    @property
    def output(self) -> str:
        """The dataset, which takes the parts."""
        return self.dataset
