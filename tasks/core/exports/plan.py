"""What an export has to do: the parts of its dataset, and which of them the output holds."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from streaming_ext.dataset.layout import EXPORT, MANIFEST, SPLITS, Split
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.record import PartRecord
from streaming_ext.dataset.schema import FileRecord, from_json, to_json
from streaming_ext.errors import (
    CorruptDatasetError,
    DatasetError,
    NotADatasetError,
    UsageError,
)
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.exports.config import ExportConfig
from tasks.core.exports.contract import ExportFormat, ExportOptions, Extent, Place
from tasks.core.exports.formats import FORMATS
from tasks.core.exports.part import ExportJob, kept_in
from tasks.core.exports.records import (
    BEGUN,
    FOLDER,
    ExportIdentity,
    ExportManifest,
    ExportRecord,
    Piece,
    file_sizes,
    read_export,
    record_path,
)
from tasks.core.moving.begun import require_no_foreign, require_not_older
from tasks.core.outputs.taken_over import Finished, without_damaged
from tasks.core.planning.plan import scratch_folder
from tasks.core.planning.run_plan import StageName
from tasks.core.planning.surroundings import require_outside
from tasks.core.reading.opened import open_dataset, read_record
from tasks.core.reading.records import read_all
from tasks.core.storage import Storage, open_storage
from tasks.core.storage.scratch import take_scratch

_IO_THREADS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportPlan:
    """All that an export needs to know before its first job.

    Attributes:
        dataset: where that lies.
        manifest: of the dataset.
        parts: of the dataset, each with the bytes of its shards; the index is the part's number.
        places: where the share of each part stands in each split.
        totals: what each split holds.
        todo: parts without a record.
        published: the output holds this very export, whole.
    """

    config: ExportConfig
    dataset: Storage
    manifest: Manifest
    identity: ExportIdentity
    parts: tuple[Part, ...]
    places: tuple[tuple[Place, ...], ...]
    totals: dict[Split, Extent]
    todo: tuple[int, ...]
    published: bool
    scratch: Path
    stage: StageName = "export"

    @property
    def form(self) -> ExportFormat:
        """The format, for these counts."""
        return FORMATS[self.config.format](self.manifest.spec, self.config.options, self.totals)

    @property
    def assembly(self) -> Path | None:
        """The folder of files that several parts write into, and of the records until then."""
        return self.scratch / "assembly" if self.form.shared() else None

    def part(self, number: int) -> Part:
        """A part of the dataset."""
        return self.parts[number]

    def job(self, number: int, output: Storage) -> ExportJob:
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

    def finished(self, output: Storage) -> Finished:
        """What earlier runs wrote of the parts that are not to be done."""
        done = set(range(len(self.parts))) - set(self.todo)
        if not done:
            return Finished(output, {})
        keeper = self.keeper(output)
        records = read_export_records(keeper)
        return Finished(
            keeper, {part: [piece.stretch for piece in records[part].pieces] for part in done}
        )

    def with_again(self, parts: frozenset[int]) -> "ExportPlan":
        """The same, with some parts to be made again."""
        return replace(self, todo=tuple(sorted({*self.todo, *parts})))

    def keeper(self, output: Storage) -> Storage:
        """Where the records of parts lie before the export is published."""
        return output if self.assembly is None else kept_in(self.assembly)


def compare_with_output(config: ExportConfig, output: Storage) -> ExportPlan:
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
    plan = ExportPlan(
        config=config,
        dataset=dataset,
        manifest=manifest,
        identity=identity,
        parts=tuple(_part(dataset, record) for record in records),
        places=places,
        totals=totals,
        todo=tuple(range(len(records))),
        published=False,
        scratch=scratch_folder(config, output),
    )
    _require_room_for_files(plan, output)
    return _without_what_is_done(plan, output)


def _require_room_for_files(plan: ExportPlan, output: Storage) -> None:
    """Refuse files that the output could not be given, before they are made.

    Raises:
        UsageError: one would be too large.
    """
    most = output.largest_file
    for path, size in plan.form.shared().items():
        if most is not None and size > most:
            raise UsageError(
                f"{path} would have {size:,} bytes; {output} is given files of at most {most:,}. "
                "Use a folder or s3:// as --output, or a smaller --max-file-size where the format "
                "has several files."
            )


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


def _without_what_is_done(plan: ExportPlan, output: Storage) -> ExportPlan:
    sizes = output.list()
    try:
        there = read_export(output)
    except NotADatasetError:
        there = None
    if there is not None:
        _require_same(plan, there.identity, output)
        _require_whole(output, there)
        return replace(plan, todo=(), published=True)
    if BEGUN in sizes:
        begun = from_json(ExportIdentity, output.read(BEGUN), where=f"{output}/{BEGUN}")
        _require_same(plan, begun, output)
        return replace(plan, todo=_missing(plan, output))
    if records := read_export_records(output):  # of a published export whose manifest was removed
        for part, record in records.items():
            record.identity.require_same(plan.identity, where=f"{output}/{record_path(part)}")
        return replace(plan, todo=_missing(plan, output))
    require_no_foreign(output, sizes)
    return plan


def _require_same(plan: ExportPlan, there: ExportIdentity, output: Storage) -> None:
    if there.model_copy(update={"dataset_manifest": plan.identity.dataset_manifest}) == (
        plan.identity
    ):
        require_not_older(output, there.dataset_manifest.xxh128, plan.manifest)
    there.require_same(plan.identity, where=str(output))


def _missing(plan: ExportPlan, output: Storage) -> tuple[int, ...]:
    """Parts without a record, or whose files are not all there."""
    assembly = plan.assembly
    if assembly is not None and not assembly.is_dir():
        return plan.todo
    keeper = plan.keeper(output)
    records = read_export_records(keeper)
    sizes = all_sizes(keeper)
    done = set()
    for part, record in records.items():
        if record.identity == plan.identity and _there(record.pieces, sizes):
            done.add(part)
    return tuple(part for part in plan.todo if part not in done)


def _there(pieces: Iterable[Piece], sizes: Mapping[str, int]) -> bool:
    return all(sizes.get(path, -1) >= size for path, size in file_sizes(pieces).items())


def read_export_records(storage: Storage) -> dict[int, ExportRecord]:
    """The records of exported parts on a storage, by part.

    Raises:
        CorruptDatasetError: one is damaged.
    """
    paths = [path for path in storage.list(FOLDER) if path != BEGUN]
    return read_all(storage, paths, partial(from_json, ExportRecord))


def all_sizes(storage: Storage) -> dict[str, int]:
    """Every file of an export: a listing leaves out folders at the root that begin with a dot."""
    return {**storage.list(), **storage.list(".nv-meta")}


def _require_whole(output: Storage, there: ExportManifest) -> None:
    """Look whether a published export still has its files.

    Raises:
        CorruptDatasetError: it lost one.
    """
    sizes = all_sizes(output)
    records = read_export_records(output).values()
    wanted = {part.record.path: part.record.size for part in there.parts}
    wanted |= file_sizes(all_pieces(there, records))
    lost = [path for path, size in wanted.items() if sizes.get(path) != size]
    if lost:
        raise CorruptDatasetError(
            f"{output} is published, but {lost[0]} is missing or cut short. Remove {EXPORT} to "
            "have what is lost made again."
        )


def all_pieces(manifest: ExportManifest, records: Iterable[ExportRecord]) -> list[Piece]:
    """Every piece of every file of an export."""
    return [*manifest.pieces, *(piece for record in records for piece in record.pieces)]


def prepare(
    plan: ExportPlan, output: Storage, tell: Callable[[str], None] = lambda words: None
) -> ExportPlan:
    """Remove what killed runs left on its way, and say on the output what is being made.

    The caller holds the output.

    Args:
        plan: of what to do.
        output: takes it.
        tell: called with what is waited for.

    Returns:
        The plan, with what was damaged since it was finished to be made again.
    """
    plan = without_damaged(plan, output, tell)
    output.remove_incoming()
    keep = plan.assembly if BEGUN in output.list(FOLDER) else None
    take_scratch(plan.scratch, keep=[] if keep is None else [keep])
    output.put(BEGUN, to_json(plan.identity))
    # Of what is made again nothing says that it is whole, whoever is killed meanwhile.
    keeper = plan.keeper(output)
    recorded = keeper.list(FOLDER)
    for path in map(record_path, plan.todo):
        if path in recorded:
            keeper.remove(path)
    return plan


def require_records(plan: ExportPlan, output: Storage) -> dict[int, ExportRecord]:
    """The records of all parts.

    Raises:
        DatasetError: one is gone, or of another export.
    """
    records = read_export_records(plan.keeper(output))
    for part in range(len(plan.parts)):
        if part not in records:
            raise DatasetError(
                f"{output}: {record_path(part)} is gone; something removed it during the run. "
                "Run the same command again."
            )
        records[part].identity.require_same(plan.identity, where=f"{output}/{record_path(part)}")
    return records


def _manifest_record(storage: Storage) -> FileRecord:
    """Which dataset lies at a place: size and hash of its manifest.

    Raises:
        FileNotFoundError: none does.
    """
    return FileRecord.of(MANIFEST, storage.read(MANIFEST))
