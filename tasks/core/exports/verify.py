"""Checking an export: every byte against its records, and against the dataset it was made from.

The documents of the dataset go through the format once more, and the hashes of what comes out are
compared with those of the files: where they agree, the export holds the same ids, document for
document.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from streaming_ext.dataset.layout import EXPORT, RUNS_FOLDER, SPLITS, Split
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.schema import from_json
from streaming_ext.errors import (
    CorruptDatasetError,
    DatasetError,
    ShardmillError,
    StorageError,
    UsageError,
)
from tasks.core.exports.contract import Extent, Place
from tasks.core.exports.files import HashedOut
from tasks.core.exports.formats import FORMATS, made_with
from tasks.core.exports.job import ExportJob
from tasks.core.exports.part import read_dataset_manifest, write_splits
from tasks.core.exports.plan import all_pieces, all_sizes
from tasks.core.exports.records import (
    BEGUN,
    ExportManifest,
    ExportRecord,
    Piece,
    file_sizes,
    read_export,
    record_path,
)
from tasks.core.outputs.taken_over import wrong_bytes
from tasks.core.reading.dataset_files import MAX_JSON_BYTES, DatasetFiles
from tasks.core.reading.opened import open_dataset
from tasks.core.storage import Storage, open_storage
from tasks.core.verify.findings import Finding


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
    manifest = read_export(storage)
    sizes = all_sizes(storage)
    records, findings = _records(storage, sizes, manifest)
    pieces = all_pieces(manifest, records.values())
    findings += _wrong_files(manifest, pieces, sizes)
    total, done = sum(piece.size for piece in pieces), 0
    with ThreadPoolExecutor(workers) as threads:
        for piece, wrong in zip(
            pieces, threads.map(lambda each: _wrong_bytes(storage, each), pieces), strict=True
        ):
            done += piece.size
            on_progress(done, 2 * total)
            findings += wrong
        dataset, why, wrong = _open_dataset(manifest)
        findings += wrong
        documents = tokens = 0
        if dataset is not None:
            compared = _Compared(*dataset, manifest, records)
            # Behind a part without a record nobody knows where the next one begins.
            first_lost = next(
                (part for part in range(len(manifest.parts)) if part not in records), None
            )
            known = [
                record
                for part, record in sorted(records.items())
                if first_lost is None or part < first_lost
            ]
            for record, wrong in zip(known, threads.map(compared.part, known), strict=True):
                findings += wrong
                done += sum(piece.size for piece in record.pieces)
                on_progress(done, 2 * total)
                documents += sum(held.documents for held in record.splits.values())
                tokens += sum(held.tokens for held in record.splits.values())
            if len(records) == len(manifest.parts):
                findings += compared.rest()
    return ExportReport(
        export=str(storage),
        dataset=manifest.dataset,
        not_compared=why,
        findings=tuple(sorted(set(findings))),
        files=len(file_sizes(pieces)),
        bytes=total,
        documents=documents,
        tokens=tokens,
        seconds=time.monotonic() - began,
    )


def _records(
    storage: Storage, sizes: Mapping[str, int], manifest: ExportManifest
) -> tuple[dict[int, ExportRecord], list[Finding]]:
    files, records, findings = DatasetFiles(storage, sizes), {}, []
    for part in manifest.parts:
        path = part.record.path
        try:
            data = files.read(part.record, limit=MAX_JSON_BYTES)
            record = from_json(ExportRecord, data, where=path)
        except (CorruptDatasetError, StorageError) as error:
            findings.append(Finding(file=path, problem=str(error)))
            continue
        if (record.part, record.identity) != (part.part, manifest.identity):
            findings.append(Finding(file=path, problem="the record of another part or export"))
            continue
        records[part.part] = record
    return records, findings


def _wrong_files(
    manifest: ExportManifest, pieces: list[Piece], sizes: Mapping[str, int]
) -> list[Finding]:
    """Files that are of another size, or that nothing lists."""
    wanted = file_sizes(pieces)
    found = [
        Finding(file=path, problem=f"{sizes[path]} bytes, expected {size}")
        for path, size in wanted.items()
        if path in sizes and sizes[path] != size
    ]
    known = {EXPORT, BEGUN, *wanted, *(record_path(part.part) for part in manifest.parts)}
    found += [
        Finding(file=path, problem=f"{size} bytes that nothing in the export lists")
        for path, size in sizes.items()
        if path not in known and path.split("/", 1)[0] != RUNS_FOLDER
    ]
    return found


def _wrong_bytes(storage: Storage, piece: Piece) -> list[Finding]:
    try:
        problem = wrong_bytes(storage, piece.stretch)
    except StorageError as error:
        problem = str(error)
    return [Finding(file=piece.path, problem=problem)] if problem else []


def _open_dataset(
    manifest: ExportManifest,
) -> tuple[tuple[Storage, Manifest] | None, str, list[Finding]]:
    """The dataset, where it can be compared with; else why not, and whether that is damage."""
    where, here = manifest.dataset, made_with(manifest.identity.export)
    if manifest.made_with != here:
        return None, f"made with {_versions(manifest.made_with)}, here is {_versions(here)}", []
    try:
        storage = open_storage(where)
        storage.read(manifest.identity.dataset_manifest.path)
    except FileNotFoundError:
        return None, f"{where} is not there", []
    except (StorageError, UsageError) as error:
        why = f"cannot be compared with: {error}"
        return None, why, [Finding(file=where, problem=why)]
    try:
        found = read_dataset_manifest(storage, manifest.identity.dataset_manifest)
    except DatasetError as error:
        older = _older_generation(storage, manifest.identity.dataset_manifest.xxh128)
        if older is not None:
            return (storage, older), "", []
        return None, "it is another dataset", [Finding(file=where, problem=str(error))]
    return (storage, found), "", []


def _older_generation(storage: Storage, manifest: str) -> Manifest | None:
    """What a dataset was before it was extended, where it was that."""
    try:
        return open_dataset(storage, generation=manifest)[1]
    except (DatasetError, UsageError):
        return None


def _versions(libraries: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in libraries.items()) or "none"


class _Compared:
    """The dataset, written once more into hashes."""

    def __init__(
        self,
        dataset: Storage,
        of_dataset: Manifest,
        manifest: ExportManifest,
        records: Mapping[int, ExportRecord],
    ) -> None:
        self._dataset, self._of_dataset = dataset, of_dataset
        self._manifest, self._records = manifest, records
        self._before = _extents_before(manifest, records)

    def part(self, record: ExportRecord) -> list[Finding]:
        """What is not as the dataset has it, of a part."""
        job = ExportJob(
            part=record.part,
            dataset=self._manifest.dataset,
            output="",
            scratch="",
            assembly=None,
            identity=self._manifest.identity,
            places=tuple(
                Place(part=record.part, split=split, before=before, own=record.splits[split])
                for split, before in self._before[record.part].items()
                if split in record.splits
            ),
            totals=self._manifest.splits,
        )
        out = HashedOut()
        try:
            made = write_splits(job, self._dataset, self._of_dataset, out)
        except ShardmillError as error:
            return [Finding(file=self._manifest.dataset, problem=str(error))]
        wrong = _differences(record.pieces, out.pieces)
        if made != record.made:
            wrong.append(
                Finding(
                    file=record_path(record.part),
                    problem="lists other files than the dataset's documents make",
                )
            )
        return wrong

    def rest(self) -> list[Finding]:
        """What is not as the dataset has it, of no part."""
        identity, out = self._manifest.identity, HashedOut()
        form = FORMATS[identity.export](
            self._of_dataset.spec, identity.options, self._manifest.splits
        )
        ordered = [self._records[part] for part in sorted(self._records)]
        form.finish(
            {
                split: [file for record in ordered for file in record.made.get(split, ())]
                for split in SPLITS
                if split in self._manifest.splits
            },
            out,
        )
        return _differences(self._manifest.pieces, out.pieces)


def _extents_before(
    manifest: ExportManifest, records: Mapping[int, ExportRecord]
) -> dict[int, dict[Split, Extent]]:
    """What the parts before each hold of each split."""
    sums = {split: Extent() for split in manifest.splits}
    before = {}
    for part in sorted(records):
        before[part] = dict(sums)
        for split, held in records[part].splits.items():
            sums[split] += held
    return before


def _differences(listed: "tuple[Piece, ...]", made: list[Piece]) -> list[Finding]:
    def key(piece: Piece) -> tuple[str, int, int, str]:
        return piece.path, piece.start, piece.size, piece.xxh128

    different = {key(piece) for piece in listed} ^ {key(piece) for piece in made}
    return [
        Finding(file=path, problem="does not hold the documents of the dataset, id by id")
        for path in sorted({path for path, *_ in different})
    ]
