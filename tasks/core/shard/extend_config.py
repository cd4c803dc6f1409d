"""The one configuration of an extension: the same object in command line, YAML and parameters."""

from typing import Annotated, ClassVar

from pydantic import ByteSize, Field

from streaming_ext.store import open_storage
from streaming_ext.text.options import HubOptions, Options, PartOptions, Several
from tasks.core.config import ShardConfig
from tasks.core.options import ExecutionOnHosts, Fetching
from tasks.core.reading.dataset_files import open_dataset
from tasks.core.shard.base_dataset import require_extendable


class ExtendRunConfig(ShardConfig):
    """The run of an extension: `shard` into a published dataset, with its configuration.

    Attributes:
        instead: a tokenizer to use if the dataset lost its own.
    """

    instead: str | None = None


class Extension(Options):
    """Which dataset to extend, and by what."""

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
        """Where the parts go."""
        return self.dataset

    @property
    def run(self) -> ExtendRunConfig:
        """The run that does it; the dataset's manifest is read for that.

        Raises:
            NotADatasetError: there is no published dataset.
            UsageError: it cannot be extended.
        """
        storage = open_storage(self.dataset)
        _, manifest = open_dataset(storage)
        require_extendable(storage, manifest)
        spec = manifest.spec
        read = spec.read_options
        # What is not set is each host's own.
        own = {
            name: getattr(self, name) for name in self.model_fields_set - {"dataset", "tokenizer"}
        }
        return ExtendRunConfig(
            **own,
            **dict(spec.filters),
            output=self.dataset,
            tokenizer=spec.tokenizer.name,
            instead=self.tokenizer,
            text_column=read.columns,
            text_separator=read.separator,
            format=read.source_format,
            on_bad_document=read.on_bad_document,
            keep_columns=read.kept,
            sequence_length=spec.sequence_length,
            holdout_fraction=spec.holdout_fraction,
            holdout_seed=spec.holdout_seed,
            shard_size=ByteSize(spec.shard_size),
            output_format=spec.output_format,
            compression=spec.compression,
            shuffle=spec.shuffle,
            shuffle_seed=None if spec.shuffle is None else spec.shuffle_seed,
            deduplicate=spec.deduplicate,
        )
