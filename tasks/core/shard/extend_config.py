"""The one configuration of an extension: the same object in command line, YAML and parameters."""

from typing import Annotated, ClassVar

from pydantic import ByteSize, Field

from streaming_ext.base.errors import NotADatasetError, UsageError, command
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.reading import read_manifest
from streaming_ext.store import Storage, open_storage
from streaming_ext.text.options import Hub, Options, Parts
from tasks.core.config import ShardConfig
from tasks.core.options import ExecutionOnHosts, Fetching
from tasks.core.reading.dataset_files import DatasetFiles


def require_extendable(storage: Storage, manifest: Manifest) -> None:
    """Refuse what further parts would make another kind of dataset.

    Raises:
        UsageError: saying why, and what to do.
    """
    spec = manifest.spec
    merge = (
        "merge both without rewriting a shard: "
        f"{command('merge', storage, 'NEW', '--output', 'BOTH')}"
    )
    draw = command("subset", "WHOLE", "--output", "OTHER")
    alike = "with the same tokenizer, lengths, shards and holdout"
    whys = {
        "leaves out copies, and was made by a shardmill that kept no hashes of what stayed": (
            spec.deduplicate is not None and not manifest.digests,
            "Shard all sources in one run into another folder: that dataset can be extended",
        ),
        "is a subset of another dataset, of which it holds what was drawn": (
            spec.subset is not None,
            f"Extend the whole one, and draw from that: {draw}",
        ),
        "was imported from ids, which tell no texts to choose a holdout by": (
            spec.imported is not None,
            f"Import the new files of ids as a dataset of their own, NEW, and {merge}",
        ),
        "was merged of others, of which each may have been made in its own way": (
            bool(manifest.merged),
            f"Shard the new sources as a dataset of their own, NEW, {alike}, and {merge}",
        ),
        "is the share of one node, which does not know the sources of the others": (
            manifest.share is not None,
            "Shard the old and the new sources on every node in one run, into other folders",
        ),
    }
    for why, (holds, instead) in whys.items():
        if holds:
            raise UsageError(f"{storage} {why}: it cannot be extended. {instead}.")


class ExtendRunConfig(ShardConfig):
    """The run of an extension: `shard` into a published dataset, with its configuration.

    Attributes:
        instead: a tokenizer that is taken where the dataset lost its own.
    """

    instead: str | None = None


class Extension(Options):
    """Which dataset to extend, and by what."""

    heading: ClassVar[str] = "Input"

    dataset: Annotated[
        str, Field(min_length=1, description="The dataset: a folder, s3://, gs:// or az://.")
    ]
    sources: Annotated[
        tuple[str, ...],
        Field(
            min_length=1,
            description="What to add, as for shard; files that are in it unchanged are left out.",
        ),
    ]
    tokenizer: Annotated[
        str | None,
        Field(
            min_length=1,
            description="The tokenizer that it was made with, where it lost its own copy of it.",
        ),
    ] = None


class ExtendConfig(ExecutionOnHosts, Fetching, Parts, Hub, Extension):
    """An extension, and with which means it is made.

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
        try:
            manifest = read_manifest(storage)
        except NotADatasetError:
            DatasetFiles(storage, storage.list()).read_manifest()  # says what there is instead
            raise
        require_extendable(storage, manifest)
        spec = manifest.spec
        read = spec.read_options
        # What is not set is each host's own, where there are several.
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
