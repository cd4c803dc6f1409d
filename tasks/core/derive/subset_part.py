"""From some parts of a dataset to a part of a subset, recorded last."""

import shutil
import time
from collections import Counter
from pathlib import Path

import numpy as np

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.format.filters import FilterName
from streaming_ext.format.layout import SPLITS, Split, documents_path, record_path
from streaming_ext.format.provenance import DocumentRows, documents_limit, read_provenance
from streaming_ext.format.record import MOST_BAD_LISTED, PartRecord, SplitPart
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import uploads
from streaming_ext.writing.part_files import PartFiles
from tasks.core.derive.choosing import chosen
from tasks.core.reading.dataset_files import (
    DatasetFiles,
    naming,
    read_dataset_manifest,
    read_listed,
)
from tasks.core.reading.documents import PartOfDataset
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
        dataset: URL of the dataset.
        manifest: of the dataset.
        largest: chosen key; see `tasks.core.derive.choosing`.
        spec: of the part.
        output: URL of the subset.
        scratch: folder for the part's files before they are put in place.
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
        """Write the part.

        Raises:
            CorruptDatasetError: the dataset is damaged.
            StorageError: the output or scratch is full, gone or not writable.
        """
        began, scratch = time.monotonic(), Path(self.scratch)
        dataset, output = kept.storage(self.dataset), kept.storage(self.output)
        manifest = kept.last(read_dataset_manifest, dataset, self.manifest)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        files = PartFiles(scratch, self.part, self.spec, kept.memories)
        records, rows = [], 0
        for number, original in enumerate(self.originals):
            part = PartOfDataset(dataset, manifest, original.part)
            self._add(part, files, first=original.first, rows_before=rows)
            records.append(part.record)
            rows += part.record.rows
            report(JobProgress(fraction=(number + 1) / len(self.originals)))
        made = self._record(records, files.finish(), scratch)
        with uploads(output) as put:
            for file in made.files():
                put(file.path, scratch / file.path)
        output.put(record_path(self.part), to_json(made))
        shutil.rmtree(scratch, ignore_errors=True)
        return MadePart(
            documents=sum(split.documents for split in made.splits.values()),
            tokens=sum(split.tokens for split in made.splits.values()),
            size=sum(file.size for file in made.files()),
            seconds=time.monotonic() - began,
        )

    def _add(self, part: PartOfDataset, files: PartFiles, *, first: int, rows_before: int) -> None:
        """Add the chosen documents of one part of the dataset."""
        seed = None if self.spec.subset is None else self.spec.subset.seed
        listed, masks = documents_of(part.files, part.record), []
        for block in listed:
            taken = chosen(first, len(block.rows), self.largest, seed)
            first += len(taken)
            masks.append(taken)
            if taken.any():
                files.list(
                    block.rows[taken] + rows_before,
                    block.tokens[taken],
                    block.of("holdout")[taken],
                    values=[column.filter(taken) for column in block.values.values()],
                )
        splits = np.concatenate([block.splits for block in listed])
        lengths = np.concatenate([block.tokens for block in listed])
        taken = np.concatenate(masks)
        for split in part.record.splits:
            own = splits == SPLITS.index(split)
            self._pack(part, split, files, lengths[own], taken[own])

    def _pack(
        self, part: PartOfDataset, split: Split, files: PartFiles, lengths: Ints, taken: Flags
    ) -> None:
        """Pack the documents of a split that are `taken`, (documents,).

        Raises:
            CorruptDatasetError: a shard is missing or damaged, or documents end elsewhere.
        """
        first = 0
        for block in part.documents(split) if taken.any() else ():
            own = slice(first, first + len(block.ends))
            first = own.stop
            if not np.array_equal(block.lengths, lengths[own] + 1):
                with naming(part.files, part.record.documents.path):
                    raise CorruptDatasetError(f"documents of {split} do not end where it says")
            if taken[own].any():
                stream = block.stream[np.repeat(taken[own], block.lengths)]
                files.pack(split, stream, int(taken[own].sum()))
            if not taken[first:].any():
                return

    def _record(
        self, records: list[PartRecord], splits: dict[Split, SplitPart], scratch: Path
    ) -> PartRecord:
        dropped: Counter[FilterName] = Counter()
        for record in records:
            dropped.update(record.dropped_documents)
        names = ("rows", "null_documents", "empty_documents", "bad_documents")
        sums = {name: sum(getattr(record, name) for record in records) for name in names}
        skipped = sum(sums.values()) - sums["rows"] + dropped.total()
        kept = sum(split.documents for split in splits.values())
        spans = records[0].spans
        if len(records) > 1:
            spans = tuple(span for record in records for span in record.made_of)
        bad = [each for record in records for each in record.bad_listed]
        path = documents_path(self.part)
        return PartRecord(
            part=self.part,
            spec=self.spec,
            source=records[0].source,
            spans=spans,
            **sums,
            dropped_documents=dict(dropped),
            bad_listed=tuple(bad[:MOST_BAD_LISTED]),
            text_bytes=0,
            splits=splits,
            documents=FileRecord.of(path, (scratch / path).read_bytes()),
            unchosen_documents=sums["rows"] - skipped - kept,
        )


def documents_of(files: DatasetFiles, record: PartRecord) -> list[DocumentRows]:
    """The list of a part's documents, a block at a time.

    Raises:
        CorruptDatasetError: it is missing or damaged.
    """
    limit = documents_limit(record.rows, len(record.spec.keep_columns))
    return list(read_provenance(read_listed(files, record.documents, limit=limit)))
