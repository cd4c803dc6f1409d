"""What an export has to do: the parts of its dataset, and which of them the output holds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming_ext.base.errors import DatasetError, NotADatasetError, StorageError, UsageError
from streaming_ext.format.layout import EXPORT, MANIFEST, SPLITS, Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.store import LocalStorage, Storage, open_storage, uploads
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.build.build import Build, OnStatus, Published, Recorded, Words
from tasks.core.build.engine import compare
from tasks.core.build.outside import require_outside
from tasks.core.derive.config import ExportConfig
from tasks.core.derive.export_files import ScratchOut
from tasks.core.derive.export_format import ExportFormat, PartPosition
from tasks.core.derive.export_part import ExportJob
from tasks.core.derive.export_records import (
    FOLDER,
    ExportIdentity,
    ExportManifest,
    ExportRecord,
    Extent,
    all_spans,
    file_sizes,
    made_files,
    read_export,
    read_export_records,
    record_path,
)
from tasks.core.derive.formats import FORMATS, made_with
from tasks.core.reading.dataset_files import read_dataset
from tasks.core.shard.plan import scratch_folder


@dataclass(frozen=True, kw_only=True)
class ExportBuild(Build):
    """A published dataset, written as another trainer reads it.

    Attributes:
        dataset: that is exported.
        manifest: of the dataset.
        exported: the identity.
        form: the format.
        positions: of each part in each split.
    """

    config: ExportConfig
    phase: str = "export"
    dataset: Storage
    manifest: Manifest
    exported: ExportIdentity
    form: ExportFormat
    positions: tuple[tuple[PartPosition, ...], ...]

    @property
    def words(self) -> Words:
        """How people see what the run does."""
        return Words("exporting", "exported")

    @property
    def identity(self) -> ExportIdentity:
        """The format, its options and the dataset."""
        return self.exported

    @property
    def manifest_path(self) -> str:
        """The file that makes the export count."""
        return EXPORT

    @property
    def assembly(self) -> Path | None:
        """The folder of the files that several parts write into, and of the records until then."""
        return self.kept if self.form.shared() else None

    @property
    def has_shared_files(self) -> bool:
        """Whether several parts may write into one file."""
        return self.assembly is not None

    def job(self, step: str, number: int, output: Storage, results: Mapping[str, Any]) -> ExportJob:
        """What a worker does for a part."""
        assembly = self.assembly
        return ExportJob(
            part=number,
            dataset=str(self.dataset),
            output=str(output),
            scratch=str(self.scratch / f"{number:05}"),
            assembly=None if assembly is None else str(assembly),
            identity=self.identity,
            positions=self.positions[number],
            totals=dict(self.form.totals),
        )

    def is_published(self, output: Storage) -> bool:
        """Whether the output has the manifest of this export."""
        try:
            held = read_export(output)
        except NotADatasetError:
            return False
        self.require_same(held.identity.model_dump(mode="json"), where=str(output))
        return True

    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """The parts that are recorded, on the output or with the shared files on scratch."""
        keeper, sizes = self.keeper(output), output.list()
        if published and all(sizes.get(path) == n for path, n in self.form.shared().items()):
            keeper = output
        records = self._records(keeper).items()
        return Recorded(
            keeper, {part: [span.stretch for span in record.spans] for part, record in records}
        )

    def _records(self, keeper: Storage) -> dict[int, ExportRecord]:
        """The records of parts of this very export."""
        return {
            part: record
            for part, record in read_export_records(keeper).items()
            if part < len(self.parts) and record.identity == self.identity
        }

    def keeper(self, output: Storage) -> Storage:
        """Where the records of parts are before the export is published."""
        return output if self.assembly is None else LocalStorage(self.assembly)

    def beside(self, output: Storage) -> Mapping[str, int]:
        """The records, and the files that belong to no part."""
        held, shared = read_export(output), self.form.shared()
        files = file_sizes(held.spans).items()
        sizes = {path: size for path, size in files if path not in shared}
        return sizes | {record.path: record.size for record in held.records}

    def remove_leftovers(self, output: Storage) -> None:
        """Remove the records of the parts that are left to do."""
        keeper = self.keeper(output)
        for path in {*map(record_path, self.todo)} & {*keeper.list(FOLDER)}:
            keeper.remove(path)

    def finish(self, output: Storage, tell: OnStatus) -> Published:
        """Put indexes and shared files in place."""
        tell("reading the records")
        found = self._records(self.keeper(output))
        if missing := [part for part in range(len(self.parts)) if part not in found]:
            raise DatasetError(
                f"{output}: the records of parts {missing[:5]} are gone; something removed them "
                "during the run. Run the same command again."
            )
        records = [found[part] for part in range(len(self.parts))]
        assembly = self.assembly or self.scratch
        with uploads(output) as put:
            tell("putting the indexes")
            out = ScratchOut(self.scratch / "publish", assembly, put)
            self.form.finish(made_files(self.form.totals, records), out)
            for path, size in self.form.shared().items():
                tell(f"putting {path}")
                file = assembly / path
                if not file.is_file() or file.stat().st_size != size:
                    raise StorageError(f"{self.scratch} lost some of {path}. Run again.")
                put(path, file)
        data = {record_path(record.part): to_json(record) for record in records}
        manifest = ExportManifest(
            identity=self.identity,
            dataset=str(self.dataset),
            tokenizer=self.manifest.spec.tokenizer,
            splits=dict(self.form.totals),
            records=tuple(FileRecord.of(*each) for each in data.items()),
            spans=tuple(out.spans),
            made_with=made_with(self.identity.export),
        )
        if self.has_shared_files:
            tell("putting the records")
            for path, record in data.items():
                output.put(path, record)
        sizes = file_sizes(all_spans(manifest, records))
        sizes |= {path: len(record) for path, record in data.items()}
        return Published(EXPORT, to_json(manifest), sizes)


def plan_export(
    config: ExportConfig, output: Storage, tell: OnStatus = lambda words: None
) -> ExportBuild:
    """What an export has to do; nothing is written.

    Raises:
        UsageError: the format cannot hold the dataset, or the output holds something else.
        ConfigMismatchError: another export was started or made there.
        DatasetError: there is no dataset to export, or it is damaged.
    """
    require_outside(output)
    dataset = open_storage(config.dataset)
    if str(dataset) == str(output):
        raise UsageError(f"{output} is the dataset itself. Use another --output.")
    _, manifest, records = read_dataset(dataset)
    identity = ExportIdentity(
        export=config.format,
        options=config.options,
        dataset_manifest=FileRecord.of(MANIFEST, dataset.read(MANIFEST)),
    )
    form, positions = plan_positions(identity, manifest, records)
    build = ExportBuild(
        config=config,
        dataset=dataset,
        manifest=manifest,
        exported=identity,
        form=form,
        parts=tuple(_part(dataset, record) for record in records),
        positions=positions,
        scratch=scratch_folder(config, output),
    )
    return compare(build, output)


def plan_positions(
    identity: ExportIdentity, manifest: Manifest, records: Iterable[PartRecord]
) -> tuple[ExportFormat, tuple[tuple[PartPosition, ...], ...]]:
    """The format of an export, and the positions of each part of the dataset in its splits.

    Raises:
        UsageError: the format cannot hold the dataset.
    """
    make = FORMATS[identity.export]
    sums: dict[Split, Extent] = {
        split: Extent(documents=held.documents, tokens=held.tokens)
        for split in SPLITS
        if (held := manifest.splits.get(split)) is not None and held.documents
    }
    form = make(manifest.spec, identity.options, sums)
    form.require_possible()
    before, positions = dict.fromkeys(sums, Extent()), []
    for record in records:
        own = []
        for split in sums:
            if (part := record.splits[split]).documents:
                files = form.files_of(part.documents, part.tokens)
                extent = Extent(documents=part.documents, tokens=part.tokens, files=files)
                own.append(
                    PartPosition(part=record.part, split=split, before=before[split], own=extent)
                )
                before[split] += extent
        positions.append(tuple(own))
    return make(manifest.spec, identity.options, before), tuple(positions)


def _part(dataset: Storage, record: PartRecord) -> Part:
    shards = [shard for split in record.splits.values() for shard in split.shards]
    source = SourceFile(url=str(dataset), size=sum(shard.size for shard in shards))
    return Part.whole(record.part, source)
