"""Checking an export: every byte against its records, and against the dataset it was made from.

The documents of the dataset go through the format once more, and the hashes of what comes out are
compared with those of the files: where they agree, the export holds the same ids, document for
document.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from streaming_ext.base.errors import (
    CorruptDatasetError,
    DatasetError,
    NothingThereError,
    StorageError,
    UsageError,
)
from streaming_ext.format.layout import EXPORT, RUNS_FOLDER, SPLITS
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.schema import from_json
from streaming_ext.store import Storage, open_storage
from tasks.core.build.engine import all_sizes, wrong_bytes
from tasks.core.check.findings import Finding, Outcome, Progress
from tasks.core.derive.export_files import HashedOut
from tasks.core.derive.export_part import ExportJob, write_splits
from tasks.core.derive.export_plan import all_pieces, places_of
from tasks.core.derive.export_records import (
    ExportManifest,
    ExportRecord,
    Piece,
    file_sizes,
    read_export,
    record_path,
)
from tasks.core.derive.formats import FORMATS, made_with
from tasks.core.reading.dataset_files import MAX_JSON_BYTES, DatasetFiles, open_dataset, read_record


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportReport:
    """What a check of an export found.

    Attributes:
        dataset: that it was made from.
        not_compared: why it was not compared with that; empty where it was.
        files, bytes: of the export that were read.
        documents, tokens: of the dataset that were compared.
    """

    export: str
    dataset: str
    not_compared: str
    findings: tuple[Finding, ...]
    files: int
    bytes: int
    documents: int
    tokens: int
    seconds: float

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify_export(
    storage: Storage,
    *,
    workers: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> ExportReport:
    """Check every byte of an export; damage becomes a finding and never ends the check.

    Args:
        storage: where the export lies.
        workers: threads; each holds one shard of the dataset at a time.
        on_progress: called with the bytes that are done and all bytes.

    Raises:
        NotADatasetError: there is no published export at this place.
        CorruptDatasetError: its manifest is damaged.
    """
    began = time.monotonic()
    manifest, out, progress = read_export(storage), Outcome(), Progress(on_progress)
    files = DatasetFiles(storage, all_sizes(storage))
    records = _records(files, manifest, out)
    pieces = all_pieces(manifest, records.values())
    wanted = file_sizes(pieces)
    known = {EXPORT, *wanted, *(part.record.path for part in manifest.parts)}
    for path, size in files.sizes.items():
        if path not in known and not path.startswith(f"{RUNS_FOLDER}/"):
            out.found(path, f"{size} bytes that nothing in the export lists")
        elif size != wanted.get(path, size):
            out.found(path, f"{size} bytes, expected {wanted[path]}")
    total = sum(piece.size for piece in pieces)
    progress.expect(2 * total)

    def check(piece: Piece) -> str:
        progress.done(piece.size)
        try:
            return wrong_bytes(storage, piece.stretch)
        except StorageError as error:
            return str(error)

    compared: Iterable[ExportRecord] = ()
    with ThreadPoolExecutor(workers) as threads, progress:
        for piece, problem in zip(pieces, threads.map(check, pieces), strict=True):
            if problem:
                out.found(piece.path, problem)
        opened = _open_dataset(manifest, out)
        if not isinstance(opened, str):
            compared = records.values()
            jobs = _jobs(*opened, manifest)
            compare = partial(_compare_part, opened[1], manifest, jobs, progress)
            for found in threads.map(compare, compared):
                out.take(found)
            if len(records) == len(manifest.parts):
                _compare_rest(opened[1], manifest, records, out)
    held = [split for record in compared for split in record.splits.values()]
    return ExportReport(
        export=str(storage),
        dataset=manifest.dataset,
        not_compared=opened if isinstance(opened, str) else "",
        findings=tuple(sorted(set(out.findings))),
        files=len(wanted),
        bytes=total,
        documents=sum(split.documents for split in held),
        tokens=sum(split.tokens for split in held),
        seconds=time.monotonic() - began,
    )


def _records(
    files: DatasetFiles, manifest: ExportManifest, out: Outcome
) -> dict[int, ExportRecord]:
    """The records that are as listed, by part in order."""
    records = {}
    for part in manifest.parts:
        with out.about(part.record.path):
            data = files.read(part.record, limit=MAX_JSON_BYTES)
            record = from_json(ExportRecord, data, where=part.record.path)
            if (record.part, record.identity) != (part.part, manifest.identity):
                raise CorruptDatasetError("the record of another part or export")
            records[part.part] = record
    return records


def _open_dataset(manifest: ExportManifest, out: Outcome) -> tuple[DatasetFiles, Manifest] | str:
    """The dataset, of the generation that was exported; else why there is no comparing with it."""
    where, here = manifest.dataset, made_with(manifest.identity.export)
    if manifest.made_with != here:
        told = [", ".join(map(" ".join, each.items())) for each in (manifest.made_with, here)]
        return f"made with {told[0] or 'none'}, here is {told[1] or 'none'}"
    try:
        storage = open_storage(where)
        return open_dataset(storage, generation=manifest.identity.dataset_manifest.xxh128)
    except NothingThereError:
        return f"{where} is not there"
    except (DatasetError, StorageError, UsageError) as error:
        out.found(where, f"cannot be compared with: {error}")
        return "it cannot be opened, or is another dataset"


def _jobs(files: DatasetFiles, dataset: Manifest, manifest: ExportManifest) -> list[ExportJob]:
    """What made each part."""
    identity = manifest.identity
    records = [read_record(files, dataset, part) for part in range(len(dataset.parts))]
    places, totals = places_of(identity.export, identity.options, dataset, records)
    return [
        ExportJob(
            part=part,
            dataset=manifest.dataset,
            output="",
            scratch="",
            assembly=None,
            identity=identity,
            places=of_part,
            totals=totals,
        )
        for part, of_part in enumerate(places)
    ]


def _compare_part(
    dataset: Manifest,
    manifest: ExportManifest,
    jobs: list[ExportJob],
    progress: Progress,
    record: ExportRecord,
) -> Outcome:
    """Make a part again, and compare hashes of what comes of it."""
    found, out, job = Outcome(), HashedOut(), jobs[record.part]
    with found.about(manifest.dataset):
        made = write_splits(job, open_storage(manifest.dataset), dataset, out)
        _compare(record.pieces, out, found)
        splits = {place.split: place.own for place in job.places}
        if (made, splits) != (record.made, record.splits):
            words = "lists other files than the dataset's documents make"
            found.found(record_path(record.part), words)
    progress.done(sum(piece.size for piece in record.pieces))
    return found


def _compare_rest(
    dataset: Manifest, manifest: ExportManifest, records: Mapping[int, ExportRecord], found: Outcome
) -> None:
    """The same of what belongs to no part."""
    identity, out = manifest.identity, HashedOut()
    form = FORMATS[identity.export](dataset.spec, identity.options, manifest.splits)
    ordered = [records[part].made for part in sorted(records)]
    form.finish(
        {
            split: [file for made in ordered for file in made.get(split, ())]
            for split in SPLITS
            if split in manifest.splits
        },
        out,
    )
    _compare(manifest.pieces, out, found)


def _compare(listed: Iterable[Piece], made: HashedOut, found: Outcome) -> None:
    for path in {piece.path for piece in {*listed} ^ {*made.pieces}}:
        found.found(path, "does not hold the documents of the dataset, id by id")
