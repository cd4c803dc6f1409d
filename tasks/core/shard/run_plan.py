"""The plan of a run that makes a dataset from sources, and the dataset that it may extend.

Parts of an extension are numbered after those in the manifest, so nobody reads its files as part of
the dataset before the next generation is published.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from streaming_ext.base.errors import CorruptDatasetError, TokenizerError, UsageError, command
from streaming_ext.format.layout import BUILD, MANIFEST, SHUFFLE_FOLDER, TOKENIZER_FOLDER
from streaming_ext.format.manifest import Generation, Manifest, NodePartition, index_file
from streaming_ext.format.record import PartRecord, SpanRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.shuffled import Source, sources_of
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.text.tokenizer.load import load_like
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.publish import tokenizer_data
from tasks.core.engine.build import Build, Recorded
from tasks.core.engine.output_files import hash_of, lost_files, named
from tasks.core.options import EngineChoice
from tasks.core.reading.dataset_files import (
    DatasetFiles,
    beside_parts,
    digests_of,
    open_tokenizer,
    read_dataset,
    read_listed,
    recorded_sizes,
    tables_of,
)
from tasks.core.reporting.report import ReportedCounts
from tasks.core.shard.sources import spans_of
from tasks.core.shuffle.spills import MergeInput, SpillRecord, source_numbers


def require_extendable(storage: Storage, manifest: Manifest) -> None:
    """Refuse to extend a dataset that is a subset, imported, merged or one node's.

    Raises:
        UsageError: it is one of these; the message says what to do.
    """
    spec = manifest.spec
    kinds = {
        "a subset": spec.subset,
        "an imported": spec.imported,
        "a merged": manifest.merged,
        "one node's": manifest.node_partition,
    }
    for kind, value in kinds.items():
        if value:
            merge = command("merge", storage, "NEW", "--output", "BOTH")
            raise UsageError(
                f"{storage} is {kind} dataset: it cannot be extended. Extend the dataset that it "
                f"was made from, or make NEW of the new sources and merge both: {merge}."
            )


@dataclass(frozen=True, kw_only=True)
class BaseDataset:
    """The generation of a dataset that a run extends.

    Attributes:
        files: the files of the dataset.
        manifest: the manifest of the generation.
        file: the recorded file of that manifest.
        records: the records of the parts, by number.
        sources: the sources of a shuffled dataset, by number.
    """

    files: DatasetFiles
    manifest: Manifest
    file: FileRecord
    records: Mapping[int, PartRecord]
    sources: Sequence[Source] = ()

    @classmethod
    def open(cls, storage: Storage) -> Self:
        """Open the newest generation, and read what an extension needs.

        Raises:
            NotADatasetError: nothing is published.
            UsageError: the dataset cannot be extended.
            CorruptDatasetError: a file is lost or damaged.
        """
        files, manifest, records = read_dataset(storage)
        require_extendable(storage, manifest)
        needed = [file for record in records for file in record.files()]
        needed += [*tables_of(manifest), *digests_of(manifest)]
        needed += [file for each in manifest.added for file in (each.replaced, *each.files)]
        if lost := lost_files(files.sizes, recorded_sizes(needed)):
            raise _irreplaceable(storage, named(lost))
        sources: Sequence[Source] = ()
        if manifest.shuffled is not None:
            sources = sources_of(read_listed(files, manifest.shuffled.sources))
        return cls(
            files=files,
            manifest=manifest,
            file=FileRecord.of(MANIFEST, to_json(manifest)),
            records=dict(enumerate(records)),
            sources=sources,
        )

    @property
    def made_of(self) -> list[SpanRecord]:
        """The spans that the dataset was made from."""
        if self.sources:
            return spans_of(self.sources)
        return [made for record in self.records.values() for made in record.made_of]

    @property
    def generation(self) -> Generation:
        """The entry of this generation in the next manifest."""
        return self.manifest.as_generation(self.file)

    def is_complete(self) -> bool:
        """Return whether no file is missing and stock readers see this generation too."""
        sizes, manifest = self.files.sizes, self.manifest
        if BUILD in sizes or any(path.startswith(f"{SHUFFLE_FOLDER}/") for path in sizes):
            return False
        if lost_files(sizes, recorded_sizes(beside_parts(manifest))):
            return False
        try:
            for split, summary in manifest.splits.items():
                if index_file(split, summary.index, sizes) != summary.index:
                    self.files.read(summary.index, limit=summary.index.size)
        except CorruptDatasetError:
            return False
        return True

    def open_tokenizer(self, instead: str | None) -> Tokenizer:
        """Open the tokenizer that the dataset was made with.

        Args:
            instead: a tokenizer to use if the dataset's own copy is lost or damaged.

        Raises:
            TokenizerError: there is neither, or `instead` is another tokenizer.
            StorageError: a file cannot be read.
        """
        identity = self.manifest.spec.tokenizer
        try:
            return open_tokenizer(self.files, self.manifest.spec)
        except TokenizerError as error:
            if instead is None:
                raise TokenizerError(
                    f"{error} Give the tokenizer that the dataset was made with as --tokenizer; "
                    "its files are put back."
                ) from error
        found = load_like(instead, identity)
        if found.fingerprint != identity.fingerprint:
            raise TokenizerError(
                f"{instead} has the fingerprint {found.fingerprint}, the dataset was made with "
                f"{identity.name}, {identity.fingerprint}. Give that one."
            )
        return replace(found, name=identity.name)

    def put_lost_tokenizer(self, tokenizer: Tokenizer, storage: Storage) -> None:
        """Put back the tokenizer files that the dataset lost.

        Args:
            tokenizer: the tokenizer of the dataset.
            storage: the storage of the dataset.

        Raises:
            CorruptDatasetError: a file differs from the one that the manifest lists.
            StorageError: the dataset cannot be read or written.
        """
        for file in self.manifest.tokenizer_files:
            if hash_of(storage, file.path) != file.xxh128:
                put_again(storage, file, tokenizer_data(tokenizer)[file.path])


def put_again(storage: Storage, file: FileRecord, data: bytes) -> None:
    """Put back a file that a dataset lost.

    Args:
        storage: the storage of the dataset.
        file: the file that the dataset lists.
        data: the content, made again.

    Raises:
        CorruptDatasetError: the two differ.
    """
    if FileRecord.of(file.path, data) != file:
        raise _irreplaceable(storage, file.path)
    storage.put(file.path, data)


def _irreplaceable(storage: Storage, paths: str) -> CorruptDatasetError:
    return CorruptDatasetError(
        f"{storage} lost {paths}, which cannot be made again. Put it back from a copy of the "
        f"dataset. {command('verify', storage)} names everything that is wrong."
    )


def to_grow(storage: Storage) -> str:
    """Return advice on how to add new sources to a published dataset."""
    return f"New sources are added to it by {command('extend', storage, 'SOURCE...')}."


# The work on each part; `sort` and `merge` are the two phases of a shuffle or deduplication.
PhaseName = Literal["shard", "import", "sort", "merge"]


@dataclass(frozen=True, kw_only=True)
class RecordedParts(Recorded):
    """The parts that are recorded as done, with their records."""

    records: Mapping[int, PartRecord | SpillRecord]


@dataclass(frozen=True, kw_only=True)
class RunPlan(Build):
    """The facts that a run needs before its first job.

    Attributes:
        phase: the work on each part.
        engine: the configured engine; None if the sources hold ids.
        check_sources: True to compare each remote file with the hash of its store.
        sources: the sources as the user named them.
        tokenizer: the tokenizer of the dataset.
        earlier: the counts of the parts that are done already.
        node_partition: the partition of the node, if each node makes a dataset of some sources.
        first_part: the number of the run's first part; earlier ones belong to `base`.
        first_source: the number of the run's first source; earlier ones belong to `base`.
        merge_input: the input of all parts of the second phase.
        base: the published dataset that the run extends; its parts come first.
    """

    phase: PhaseName
    spec: DatasetSpec
    engine: EngineChoice | None
    check_sources: bool = False
    sources: tuple[str, ...] = ()
    tokenizer: Tokenizer
    earlier: tuple[ReportedCounts, ...] = ()
    node_partition: NodePartition | None = None
    first_part: int = 0
    first_source: int = 0
    merge_input: MergeInput | None = None
    base: BaseDataset | None = None
    done: RecordedParts | None = None

    @cached_property
    def first_sources(self) -> dict[int, int]:
        """The number of the first source of each part that the run makes."""
        own = self.parts[self.first_part :]
        pairs = zip(own, source_numbers(own), strict=True)
        return {part.number: self.first_source + numbers[0] for part, numbers in pairs}

    @property
    def is_made(self) -> bool:
        """True if all parts are made, and only publishing is left."""
        return self.merge_input is not None and self.merge_input.index is None

    @property
    def note(self) -> str:
        """A remark on the tokenizer for people; empty if there is none."""
        if self.base is not None or self.engine is None:
            return ""
        return self.tokenizer.note

    @property
    def tokenizer_folder(self) -> Path:
        """The folder of the tokenizer that all workers load."""
        return self.scratch / TOKENIZER_FOLDER

    @property
    def downloads(self) -> Path:
        """The folder for fetched source files, which a resumed run uses again."""
        return self.kept

    def with_again(self, parts: frozenset[int]) -> Self:
        """Return the plan with some more parts to be made again."""
        again = super().with_again(parts)
        earlier = tuple(counts for counts in self.earlier if counts.part not in parts)
        return replace(again, earlier=earlier)
