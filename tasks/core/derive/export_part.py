"""From a part of a dataset to its share of an export, recorded last."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from streaming_ext.format.layout import Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.schema import to_json
from streaming_ext.store import LocalStorage, Storage, uploads
from streaming_ext.writing.split_writer import Memories, Memory
from tasks.core.derive.export_files import WrittenOut
from tasks.core.derive.export_format import Extent, Made, Out, Place
from tasks.core.derive.export_records import ExportIdentity, ExportRecord, record_path
from tasks.core.derive.formats import FORMATS
from tasks.core.reading.dataset_files import DatasetFiles, read_dataset_manifest, read_record
from tasks.core.reading.documents import PartOfDataset
from tasks.core.workers.messages import Job, JobProgress, Kept, MadePart, Report


class ExportJob(Job[MadePart]):
    """Write one part's share of an export and record it.

    Attributes:
        dataset: where that lies.
        output: where the export goes.
        scratch: folder for the part's files on their way.
        assembly: folder of files that several parts write into; None where there are none.
        places: where the part's share of each split stands.
        totals: what each split holds.
    """

    part: int
    dataset: str
    output: str
    scratch: str
    assembly: str | None
    identity: ExportIdentity
    places: tuple[Place, ...]
    totals: dict[Split, Extent]

    def do(self, kept: Kept, report: Report) -> MadePart:
        """See `export_part`."""
        dataset = kept.storage(self.dataset)
        manifest = kept.last(read_dataset_manifest, dataset, self.identity.dataset_manifest)
        output = kept.storage(self.output)
        return export_part(self, dataset, manifest, output, report, memories=kept.memories)


def open_part(storage: Storage, manifest: Manifest, part: int) -> PartOfDataset:
    """A part of a dataset, as its manifest lists it.

    Raises:
        CorruptDatasetError: its record is missing or damaged.
    """
    file = manifest.parts[part].record
    record = read_record(DatasetFiles(storage, {file.path: file.size}), manifest, part)
    return PartOfDataset(storage, manifest, record)


def write_splits(
    job: ExportJob,
    dataset: Storage,
    manifest: Manifest,
    out: Out,
    report: Callable[[JobProgress], None] = lambda progress: None,
    *,
    memories: Memories | None = None,
) -> dict[Split, tuple[Made, ...]]:
    """Have the format write all that a part holds; returns the part's own files."""
    memories = {} if memories is None else memories
    form = FORMATS[job.identity.export](manifest.spec, job.identity.options, job.totals)
    part = open_part(dataset, manifest, job.part)
    total = max(sum(place.own.tokens for place in job.places), 1)
    done, made = 0, {}
    for place in job.places:
        exporter = form.open(place, out)
        memory = memories.setdefault(place.split, Memory())
        for documents in part.documents(place.split, origins=form.tells_origins, memory=memory):
            exporter.add(documents)
            done += len(documents.stream)
            report(
                JobProgress(
                    fraction=done / total,
                    text_bytes=done * documents.stream.itemsize,
                    tokens=done,
                )
            )
        made[place.split] = tuple(exporter.finish())
    return made


def export_part(
    job: ExportJob,
    dataset: Storage,
    manifest: Manifest,
    output: Storage,
    report: Callable[[JobProgress], None] = lambda progress: None,
    *,
    memories: Memories | None = None,
) -> MadePart:
    """Write a part's files, or its pieces of shared ones; the record makes it count.

    Args:
        job: which part, and where to.
        dataset: that it is of.
        manifest: of the dataset.
        output: takes the files.
        report: told how far it is.
        memories: to read shards into.

    Raises:
        CorruptDatasetError: the dataset is damaged.
        StorageError: the output or scratch is full, gone or not writable.
    """
    began = time.monotonic()
    scratch = Path(job.scratch)
    assembly = scratch if job.assembly is None else Path(job.assembly)
    shutil.rmtree(scratch, ignore_errors=True)
    with uploads(output) as put:
        out = WrittenOut(scratch, assembly, put)
        try:
            made = write_splits(job, dataset, manifest, out, report, memories=memories)
            out.settle()
        finally:
            out.abandon()
    record = ExportRecord(
        identity=job.identity,
        part=job.part,
        splits={place.split: place.own for place in job.places},
        made=made,
        pieces=tuple(out.pieces),
    )
    keeper = output if job.assembly is None else kept_in(assembly)
    keeper.put(record_path(job.part), to_json(record))
    shutil.rmtree(scratch, ignore_errors=True)
    return MadePart(
        documents=sum(place.own.documents for place in job.places),
        tokens=sum(place.own.tokens for place in job.places),
        size=sum(piece.size for piece in out.pieces),
        seconds=time.monotonic() - began,
    )


def kept_in(assembly: Path) -> LocalStorage:
    """Where the records of parts lie until the shared files are put in place."""
    storage = LocalStorage(assembly)
    storage.create()
    return storage
