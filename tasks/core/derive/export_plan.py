"""What an export has to do: the parts of its dataset, and which of them the output holds."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from streaming_ext.base.errors import DatasetError, NotADatasetError, StorageError, UsageError
from streaming_ext.format.layout import EXPORT, MANIFEST, SPLITS, Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, from_json, to_json
from streaming_ext.store import open_storage
from streaming_ext.store.contract import Storage, uploads
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.build.build import Build, Recorded, Tell, Whole, Words
from tasks.core.build.engine import compare
from tasks.core.build.outside import require_outside
from tasks.core.derive.export_files import WrittenOut
from tasks.core.derive.export_format import ExportFormat, ExportOptions, Extent, Made, Place
from tasks.core.derive.export_part import ExportJob, kept_in
from tasks.core.derive.export_records import (
    FOLDER,
    ExportedPart,
    ExportIdentity,
    ExportManifest,
    ExportRecord,
    Piece,
    file_sizes,
    read_export,
    record_path,
)
from tasks.core.derive.formats import FORMATS, made_with
from tasks.core.derive.move_config import ExportConfig
from tasks.core.reading.dataset_files import open_dataset, read_all, read_record
from tasks.core.shard.plan import scratch_folder

_IO_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class ExportBuild(Build):
    """A published dataset, written as another trainer reads it.

    Attributes:
        dataset: where that lies.
        manifest: of the dataset.
        places: where the share of each part stands in each split.
        totals: what each split holds.
    """

    config: ExportConfig
    phase: str = "export"
    dataset: Storage
    manifest: Manifest
    exported: ExportIdentity
    places: tuple[tuple[Place, ...], ...]
    totals: dict[Split, Extent]

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
    def form(self) -> ExportFormat:
        """The format, for these counts."""
        return FORMATS[self.config.format](self.manifest.spec, self.config.options, self.totals)

    @property
    def assembly(self) -> Path | None:
        """The folder of files that several parts write into, and of the records until then."""
        return self.kept if self.form.shared() else None

    @property
    def shares_files(self) -> bool:
        """Whether several parts may write into one file."""
        return self.assembly is not None

    def job(self, step: str, number: int, output: Storage, results: Mapping[str, Any]) -> ExportJob:
        """What a worker is to do for a part."""
        assembly = self.assembly
        return ExportJob(
            part=number,
            dataset=str(self.dataset),
            output=str(output),
            scratch=str(self.scratch / f"{number:05}"),
            assembly=None if assembly is None else str(assembly),
            identity=self.identity,
            places=self.places[number],
            totals=self.totals,
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
        """The parts that are recorded, on the output or where shared files are put together."""
        keeper = self.keeper(output)
        if published and (not self.shares_files or self._has_all_files(output)):
            keeper = output
        if keeper is None:
            return Recorded(output, {})
        records = read_export_records(keeper)
        return Recorded(
            keeper,
            {
                part: [piece.stretch for piece in record.pieces]
                for part, record in records.items()
                if part < len(self.parts) and record.identity == self.identity
            },
        )

    def _has_all_files(self, output: Storage) -> bool:
        sizes, shared = output.list(), self.form.shared()
        return all(sizes.get(path) == size for path, size in shared.items())

    def beside(self, output: Storage) -> Mapping[str, int]:
        """The records, and the files of no part."""
        held, shared = read_export(output), self.form.shared()
        sizes = {part.record.path: part.record.size for part in held.parts}
        files = file_sizes(held.pieces)
        return sizes | {path: size for path, size in files.items() if path not in shared}

    def keeper(self, output: Storage) -> Storage | None:
        """Where the records of parts lie before the export is published, if anywhere."""
        assembly = self.assembly
        if assembly is None:
            return output
        return kept_in(assembly) if assembly.is_dir() else None

    def require_room(self, output: Storage) -> None:
        """Refuse files that the output could not be given."""
        require_largest_file(self.form.shared(), output)

    def remove_leftovers(self, output: Storage) -> None:
        """Remove the records of what is made again: nothing says then that it is whole."""
        if (keeper := self.keeper(output)) is not None:
            recorded = keeper.list(FOLDER)
            for path in map(record_path, self.todo):
                if path in recorded:
                    keeper.remove(path)

    def finish(self, output: Storage, tell: Tell) -> Whole:
        """Put indexes and shared files in place."""
        return publish(self, output, tell)


def require_largest_file(sizes: Mapping[str, int], output: Storage) -> None:
    """Refuse files that an output could not be given, before they are made.

    Raises:
        UsageError: one would be too large.
    """
    most = output.largest_file
    for path, size in sizes.items():
        if most is not None and size > most:
            raise UsageError(
                f"{path} would have {size:,} bytes; {output} is given files of at most {most:,}. "
                "Use a folder or s3:// as --output, or a smaller --max-file-size where the format "
                "has several files."
            )


def plan_export(
    config: ExportConfig, output: Storage, tell: Tell = lambda words: None
) -> ExportBuild:
    """What an export has to do; nothing is written.

    Raises:
        UsageError: the format cannot hold the dataset, or the output holds something else.
        ConfigMismatchError: another export was begun or made there.
        DatasetError: there is no dataset to export, or it is damaged.
    """
    require_outside(output)
    dataset = open_storage(config.dataset)
    if str(dataset) == str(output):
        raise UsageError(f"{output} is the dataset itself. Use another --output.")
    files, manifest = open_dataset(dataset)
    identity = ExportIdentity(
        export=config.format,
        options=config.options,
        dataset_manifest=_manifest_record(dataset),
    )
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        records = list(
            threads.map(lambda part: read_record(files, manifest, part), range(len(manifest.parts)))
        )
    places, totals = places_of(config.format, config.options, manifest, records)
    build = ExportBuild(
        config=config,
        dataset=dataset,
        manifest=manifest,
        exported=identity,
        parts=tuple(_part(dataset, record) for record in records),
        places=places,
        totals=totals,
        scratch=scratch_folder(config, output),
    )
    return compare(build, output)


def places_of(
    export: str, options: ExportOptions, manifest: Manifest, records: Iterable[PartRecord]
) -> tuple[tuple[tuple[Place, ...], ...], dict[Split, Extent]]:
    """Where what each part of a dataset holds stands in an export of it, and the sums."""
    told = manifest.splits
    splits = [split for split in SPLITS if split in told and told[split].documents]
    sums: dict[Split, Extent] = {
        split: Extent(
            documents=manifest.splits[split].documents, tokens=manifest.splits[split].tokens
        )
        for split in splits
    }
    form = FORMATS[export](manifest.spec, options, sums)
    form.require_possible()
    totals: dict[Split, Extent] = {split: Extent() for split in splits}
    places = []
    for record in records:
        of_part = []
        for split in splits:
            held = record.splits[split]
            if not held.documents:
                continue
            own = Extent(documents=held.documents, tokens=held.tokens)
            own = own.model_copy(update={"files": form.files_of(own)})
            of_part.append(Place(part=record.part, split=split, before=totals[split], own=own))
            totals[split] += own
        places.append(tuple(of_part))
    return tuple(places), totals


def _part(dataset: Storage, record: PartRecord) -> Part:
    shards = [shard for split in record.splits.values() for shard in split.shards]
    source = SourceFile(url=str(dataset), size=sum(shard.size for shard in shards))
    return Part.whole(record.part, source)


def read_export_records(storage: Storage) -> dict[int, ExportRecord]:
    """The records of exported parts on a storage, by part.

    Raises:
        CorruptDatasetError: one is damaged.
    """
    return read_all(storage, storage.list(FOLDER), partial(from_json, ExportRecord))


def all_pieces(manifest: ExportManifest, records: Iterable[ExportRecord]) -> list[Piece]:
    """Every piece of every file of an export."""
    return [*manifest.pieces, *(piece for record in records for piece in record.pieces)]


def publish(plan: ExportBuild, storage: Storage, tell: Tell) -> Whole:
    """Put what makes the recorded parts one export, but for the manifest.

    Args:
        plan: of the run.
        storage: where it goes.
        tell: called with what is waited for now, in a few words.

    Raises:
        DatasetError: a part has no record.
        StorageError: the output is full, gone or not writable, or lost what was put there.
    """
    tell("reading the records")
    records = require_records(plan, storage)
    ordered = [records[part] for part in range(len(plan.parts))]
    form, assembly = plan.form, plan.assembly
    with uploads(storage) as put:
        tell("putting the indexes")
        out = WrittenOut(plan.scratch / "publish", assembly or plan.scratch, put)
        form.finish(_made(plan, ordered), out)
        for path, size in form.shared().items():
            tell(f"putting {path}")
            file = (assembly or plan.scratch) / path
            if not file.is_file() or file.stat().st_size != size:
                raise StorageError(f"{plan.scratch} lost some of {path}. Run again.")
            put(path, file)
    manifest = ExportManifest(
        identity=plan.identity,
        dataset=str(plan.dataset),
        tokenizer=plan.manifest.spec.tokenizer,
        splits=plan.totals,
        parts=tuple(
            ExportedPart(
                part=record.part,
                record=FileRecord.of(record_path(record.part), to_json(record)),
            )
            for record in ordered
        ),
        pieces=tuple(out.pieces),
        made_with=made_with(plan.identity.export),
    )
    if assembly is not None:
        tell("putting the records")
        for record in ordered:
            storage.put(record_path(record.part), to_json(record))
    sizes = file_sizes(all_pieces(manifest, ordered))
    sizes |= {part.record.path: part.record.size for part in manifest.parts}
    return Whole(EXPORT, to_json(manifest), sizes)


def _made(plan: ExportBuild, records: list[ExportRecord]) -> dict[Split, list[Made]]:
    """The parts' own files of each split, in order."""
    return {
        split: [file for record in records for file in record.made.get(split, ())]
        for split in SPLITS
        if split in plan.totals
    }


def require_records(plan: ExportBuild, output: Storage) -> dict[int, ExportRecord]:
    """The records of all parts.

    Raises:
        DatasetError: one is gone, or of another export.
    """
    records = read_export_records(plan.keeper(output) or output)
    for part in range(len(plan.parts)):
        if part not in records:
            raise DatasetError(
                f"{output}: {record_path(part)} is gone; something removed it during the run. "
                "Run the same command again."
            )
        plan.require_same(
            records[part].identity.model_dump(mode="json"), where=f"{output}/{record_path(part)}"
        )
    return records


def _manifest_record(storage: Storage) -> FileRecord:
    """Which dataset lies at a place: size and hash of its manifest.

    Raises:
        FileNotFoundError: none does.
    """
    return FileRecord.of(MANIFEST, storage.read(MANIFEST))
