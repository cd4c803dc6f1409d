"""From some parts of a dataset to a part of a subset, recorded last."""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from streaming_ext.format.filters import FilterName
from streaming_ext.format.layout import SPLITS, Split, documents_path, record_path
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.provenance import DocumentRows, documents_limit, read_provenance
from streaming_ext.format.record import MOST_BAD_LISTED, PartRecord, SplitPart
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage, uploads
from streaming_ext.writing.part_files import PartFiles
from streaming_ext.writing.split_writer import Memories
from tasks.core.derive.choosing import Choice, chosen
from tasks.core.reading.dataset_files import (
    DatasetFiles,
    read_dataset_manifest,
    read_listed,
    read_record,
)
from tasks.core.reading.documents import chosen_documents
from tasks.core.workers.messages import Job, JobProgress, Kept, MadePart, Message, Report


class OriginalPart(Message):
    """A part of the dataset that gives documents; `first` is the number of its first document."""

    part: int
    first: int


class SubsetJob(Job[MadePart]):
    """Write one part of a subset and record it.

    Attributes:
        part: its number.
        originals: the parts of the dataset that it is made of.
        manifest: of the dataset.
        largest: key that is taken; see `tasks.core.derive.choosing`.
        scratch: folder for the part's files on their way.
    """

    part: int
    originals: tuple[OriginalPart, ...]
    dataset: str
    manifest: FileRecord
    largest: int
    spec: DatasetSpec
    output: str
    scratch: str

    def do(self, kept: Kept, report: Report) -> MadePart:
        """See `subset_part`."""
        dataset = kept.storage(self.dataset)
        manifest = kept.last(read_dataset_manifest, dataset, self.manifest)
        output = kept.storage(self.output)
        return subset_part(self, dataset, manifest, output, report, memories=kept.memories)


def documents_of(files: DatasetFiles, record: PartRecord) -> list[DocumentRows]:
    """The list of a part's documents.

    Raises:
        CorruptDatasetError: it is missing or damaged.
    """
    limit = documents_limit(record.rows, len(record.spec.keep_columns))
    return list(read_provenance(read_listed(files, record.documents, limit=limit)))


def subset_part(
    job: SubsetJob,
    dataset: Storage,
    manifest: Manifest,
    output: Storage,
    report: Callable[[JobProgress], None] = lambda progress: None,
    *,
    memories: Memories,
) -> MadePart:
    """Write a part's files; the record makes it count.

    Raises:
        CorruptDatasetError: the dataset is damaged.
        StorageError: the output or scratch is full, gone or not writable.
    """
    began = time.monotonic()
    scratch = Path(job.scratch)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    files = PartFiles(scratch, job.part, job.spec, memories)
    records, rows = [], 0
    for number, original in enumerate(job.originals):
        listed = manifest.parts[original.part].record
        record = read_record(
            DatasetFiles(dataset, {listed.path: listed.size}), manifest, original.part
        )
        _add(job, record, dataset, files, first=original.first, rows_before=rows)
        records.append(record)
        rows += record.rows
        report(JobProgress(fraction=(number + 1) / len(job.originals)))
    made = _record(job, records, files.finish(), scratch)
    with uploads(output) as put:
        for file in made.files():
            put(file.path, scratch / file.path)
    output.put(record_path(job.part), to_json(made))
    shutil.rmtree(scratch, ignore_errors=True)
    return MadePart(
        documents=sum(split.documents for split in made.splits.values()),
        tokens=sum(split.tokens for split in made.splits.values()),
        size=sum(file.size for file in made.files()),
        seconds=time.monotonic() - began,
    )


def _add(
    job: SubsetJob,
    record: PartRecord,
    dataset: Storage,
    files: PartFiles,
    *,
    first: int,
    rows_before: int,
) -> None:
    """The documents that one part gives."""
    opened = DatasetFiles(dataset, {file.path: file.size for file in record.files()})
    choice = Choice(documents=0, largest=job.largest)
    rule = job.spec.subset
    seed = None if rule is None else rule.seed
    splits, lengths, masks = [], [], []
    for documents in documents_of(opened, record):
        taken = chosen(first, len(documents.rows), choice, seed)
        first += len(taken)
        splits.append(documents.splits)
        lengths.append(documents.tokens)
        masks.append(taken)
        if taken.any():
            files.list(
                documents.rows[taken] + rows_before,
                documents.tokens[taken],
                documents.of("holdout")[taken],
                values=[column.filter(taken) for column in documents.values.values()],
            )
    if not any(mask.any() for mask in masks):
        return
    of_split, sizes = np.concatenate(splits), np.concatenate(lengths)
    all_taken = np.concatenate(masks)
    for split in record.splits:
        own = of_split == SPLITS.index(split)
        for documents_here in chosen_documents(opened, record, split, sizes[own], all_taken[own]):
            counts = documents_here.lengths - 1
            files.pack(split, documents_here.stream, np.zeros_like(counts), counts)


def _record(
    job: SubsetJob, records: list[PartRecord], splits: dict[Split, SplitPart], scratch: Path
) -> PartRecord:
    dropped: Counter[FilterName] = Counter()
    for record in records:
        dropped.update(record.dropped_documents)
    names = ("rows", "null_documents", "empty_documents", "bad_documents")
    sums = {name: sum(getattr(record, name) for record in records) for name in names}
    skipped = sum(sums.values()) - sums["rows"] + dropped.total()
    kept = sum(split.documents for split in splits.values())
    unchosen = sums["rows"] - skipped - kept
    path = documents_path(job.part)
    bad = [each for record in records for each in record.bad_listed]
    return PartRecord(
        part=job.part,
        spec=job.spec,
        source=records[0].source,
        spans=tuple(source_span for record in records for source_span in record.made_of)
        if len(records) > 1
        else records[0].spans,
        **sums,
        dropped_documents=dict(dropped),
        bad_listed=tuple(bad[:MOST_BAD_LISTED]),
        text_bytes=0,
        splits=splits,
        documents=FileRecord.of(path, (scratch / path).read_bytes()),
        unchosen_documents=unchosen,
    )
