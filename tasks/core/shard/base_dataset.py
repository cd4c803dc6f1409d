"""The dataset that a run extends: its generation, its sources, its tokenizer.

Parts of an extension have the numbers behind those of the manifest, so nothing that it writes is
read as part of the dataset before the next generation is published.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from streaming_ext.base.errors import (
    ConfigMismatchError,
    CorruptDatasetError,
    TokenizerError,
    UsageError,
    command,
)
from streaming_ext.format.layout import (
    BUILD,
    MANIFEST,
    SHUFFLE_FOLDER,
    generation_path,
    record_path,
)
from streaming_ext.format.manifest import Generation, Manifest, index_file
from streaming_ext.format.reading import manifest_of
from streaming_ext.format.record import PartRecord, SpanRecord
from streaming_ext.format.schema import FileRecord, content_hash
from streaming_ext.format.shuffled import Source, sources_of
from streaming_ext.store import Storage
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.build.engine import lost_files, with_files
from tasks.core.reading.dataset_files import DatasetFiles, open_tokenizer, read_records
from tasks.core.shard.dataset_layout import beside_parts, digests_of, tables_of
from tasks.core.shard.same_sources import spans_of


def require_extendable(storage: Storage, manifest: Manifest) -> None:
    """Refuse a dataset that further parts would make another kind of dataset.

    Raises:
        UsageError: saying why, and what to do.
    """
    spec = manifest.spec
    merge = command("merge", storage, "NEW", "--output", "BOTH")
    whys = {
        "is a subset of another dataset": (
            spec.subset is not None,
            f"Extend that one, and draw again: {command('subset', 'WHOLE', '--output', 'OTHER')}",
        ),
        "was imported from ids, so there are no texts to choose a holdout by": (
            spec.imported is not None,
            f"Import the new files as a dataset of their own, NEW, and merge both: {merge}",
        ),
        "was merged of others": (
            bool(manifest.merged),
            f"Shard the new sources as a dataset of their own, NEW, and merge both: {merge}",
        ),
        "holds the partition of one node": (
            manifest.node_partition is not None,
            "Shard the old and the new sources on every node in one run, into other folders",
        ),
    }
    for why, (holds, instead) in whys.items():
        if holds:
            raise UsageError(f"{storage} {why}: it cannot be extended. {instead}.")


@dataclass(frozen=True, kw_only=True)
class BaseDataset:
    """The generation of a dataset that a run extends.

    Attributes:
        files: of the dataset.
        manifest: of the generation.
        file: the manifest as it lies on the output.
        records: of its parts.
        sources: of a shuffled dataset, by number.
    """

    files: DatasetFiles
    manifest: Manifest
    file: FileRecord
    records: Mapping[int, PartRecord]
    sources: Sequence[Source] = ()

    @classmethod
    def open(cls, storage: Storage) -> Self:
        """The newest generation, with everything that an extension needs of it.

        Raises:
            NotADatasetError: nothing is published.
            UsageError: it cannot be extended.
            ConfigMismatchError: a record is not the one that the manifest lists.
            CorruptDatasetError: a file is gone.
        """
        files = DatasetFiles(storage, storage.list())
        data = files.read_manifest()
        manifest = manifest_of(data, where=f"{storage}/{MANIFEST}")
        require_extendable(storage, manifest)
        records = read_records(storage, range(len(manifest.parts)))
        for number, summary in enumerate(manifest.parts):
            if number not in records or records[number].summary().record != summary.record:
                raise ConfigMismatchError(
                    f"{storage}/{record_path(number)} is not the record that {MANIFEST} lists. "
                    f"{command('verify', storage)} names everything that is wrong."
                )
        if lost := sorted(records.keys() - with_files(records, files.sizes).keys()):
            raise CorruptDatasetError(
                f"{storage} is published, but part {lost[0]:05} lost a file. "
                f"{command('verify', storage)} names everything that is wrong. Put the file back "
                "from a copy, or run `shardmill shard` again if the dataset was never extended."
            )
        needed = [*tables_of(manifest), *digests_of(manifest)]
        if gone := lost_files(files.sizes, needed):
            raise _irreplaceable(storage, ", ".join(gone))
        sources: Sequence[Source] = ()
        if manifest.shuffled is not None:
            table = storage.read(manifest.shuffled.sources.path)
            if content_hash(table) != manifest.shuffled.sources.xxh128:
                raise _irreplaceable(storage, manifest.shuffled.sources.path)
            sources = sources_of(table)
        return cls(
            files=files,
            manifest=manifest,
            file=FileRecord.of(MANIFEST, data),
            records=records,
            sources=sources,
        )

    @property
    def made_of(self) -> list[SpanRecord]:
        """Everything that the dataset was made from."""
        if self.sources:
            return spans_of(self.sources)
        return [made for record in self.records.values() for made in record.made_of]

    @property
    def generation(self) -> Generation:
        """What the next manifest says of this one."""
        return Generation(
            manifest=self.file.model_copy(update={"path": generation_path(self.file.xxh128)}),
            parts=len(self.manifest.parts),
            splits=self.manifest.splits,
            shuffled=self.manifest.shuffled,
        )

    def is_started(self, storage: Storage) -> bool:
        """Whether an extension of this very generation was started."""
        try:
            mark: object = json.loads(storage.read(BUILD))
        except FileNotFoundError:
            return False
        return mark == {"kind": "extend", "identity": self.file.model_dump(mode="json")}

    def is_complete(self) -> bool:
        """Whether no file is missing and stock readers see this generation."""
        sizes, manifest = self.files.sizes, self.manifest
        if BUILD in sizes or any(path.startswith(f"{SHUFFLE_FOLDER}/") for path in sizes):
            return False
        if lost_files(sizes, beside_parts(manifest)):
            return False
        try:
            for split, summary in manifest.splits.items():
                if index_file(split, summary.index, sizes) != summary.index:
                    self.files.read(summary.index, limit=summary.index.size)
        except CorruptDatasetError:
            return False
        return True

    def open_tokenizer(self, instead: str | None) -> Tokenizer:
        """The tokenizer that the dataset was made with.

        Args:
            instead: names one to use if the dataset's own copy is lost or damaged.

        Raises:
            TokenizerError: there is neither, or the one that was named is another one.
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
        pattern = identity.pattern if instead.endswith(".tiktoken") else None
        found = load_tokenizer(instead, eot_token=identity.eot_token, pattern=pattern)
        if found.fingerprint != identity.fingerprint:
            raise TokenizerError(
                f"{instead} has the fingerprint {found.fingerprint}, the dataset was made with "
                f"{identity.name}, {identity.fingerprint}. Give that one."
            )
        return replace(found, name=identity.name)

    def put_lost_tokenizer(self, folder: Path, storage: Storage) -> None:
        """Put back the tokenizer files that the dataset lost.

        Args:
            folder: holds the tokenizer.
            storage: of the dataset.

        Raises:
            DatasetError: a file is not the one that the manifest lists.
            StorageError: the dataset cannot be read or written.
        """
        for file in self.manifest.tokenizer_files:
            try:
                if FileRecord.of(file.path, storage.read(file.path)) == file:
                    continue
            except FileNotFoundError:
                pass
            data = (folder / Path(file.path).name).read_bytes()
            if FileRecord.of(file.path, data) != file:
                raise _irreplaceable(storage, file.path)
            storage.put(file.path, data)


def _irreplaceable(storage: Storage, paths: str) -> CorruptDatasetError:
    return CorruptDatasetError(
        f"{storage} lost {paths}, which cannot be made again. Put it back from a copy of the "
        "dataset."
    )
