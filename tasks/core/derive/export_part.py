"""From a part of a dataset to a part of an export, recorded last."""

import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from streaming_ext.format.layout import Split
from streaming_ext.format.schema import to_json
from streaming_ext.store import LocalStorage, uploads
from streaming_ext.writing.split_writer import Memories, Memory
from tasks.core.derive.export_files import HashedOut, ScratchOut
from tasks.core.derive.export_format import ExportFormat, PartPosition
from tasks.core.derive.export_records import (
    ExportIdentity,
    ExportRecord,
    Extent,
    Made,
    record_path,
)
from tasks.core.derive.formats import FORMATS
from tasks.core.reading.dataset_files import read_dataset_manifest
from tasks.core.reading.documents import Documents, PartOfDataset
from tasks.core.workers.messages import Job, JobProgress, Kept, MadePart, Report


class ExportJob(Job[MadePart]):
    """Export one part: write its files or its spans of shared files, and record it.

    Attributes:
        part: its number.
        dataset: URL of the dataset.
        output: URL of the export.
        scratch: folder for the part's files before they are put in place.
        assembly: folder of the files that several parts write into; None if there are none.
        identity: of the export.
        positions: of the part in each split.
        totals: what each split holds.
    """

    part: int
    dataset: str
    output: str
    scratch: str
    assembly: str | None
    identity: ExportIdentity
    positions: tuple[PartPosition, ...]
    totals: dict[Split, Extent]

    def do(self, kept: Kept, report: Report) -> MadePart:
        """Export the part.

        Raises:
            CorruptDatasetError: the dataset is damaged.
            StorageError: the output or scratch is full, gone or not writable.
        """
        began, scratch = time.monotonic(), Path(self.scratch)
        dataset, output = kept.storage(self.dataset), kept.storage(self.output)
        manifest = kept.last(read_dataset_manifest, dataset, self.identity.dataset_manifest)
        form = FORMATS[self.identity.export](manifest.spec, self.identity.options, self.totals)
        part = PartOfDataset(dataset, manifest, self.part)
        shutil.rmtree(scratch, ignore_errors=True)
        with uploads(output) as put:
            out = ScratchOut(scratch, Path(self.assembly or scratch), put)
            try:
                made = write_part(
                    form, part, self.positions, out, report=report, memories=kept.memories
                )
                out.sync()
            finally:
                out.abandon()
        record = ExportRecord(
            identity=self.identity,
            part=self.part,
            splits={position.split: position.own for position in self.positions},
            made=made,
            spans=tuple(out.spans),
        )
        keeper = output
        if self.assembly is not None:
            keeper = LocalStorage(Path(self.assembly))
            keeper.create()
        keeper.put(record_path(self.part), to_json(record))
        shutil.rmtree(scratch, ignore_errors=True)
        own = sum((position.own for position in self.positions), Extent())
        return MadePart(
            documents=own.documents,
            tokens=own.tokens,
            size=sum(span.size for span in out.spans),
            seconds=time.monotonic() - began,
        )


def write_part(
    form: ExportFormat,
    part: PartOfDataset,
    positions: Iterable[PartPosition],
    out: HashedOut,
    *,
    report: Report = lambda progress: None,
    memories: Memories,
) -> dict[Split, tuple[Made, ...]]:
    """Have a format write all that a part holds; returns the files that belong to the part.

    Args:
        form: the format.
        part: of the dataset.
        positions: of the part in each split.
        out: takes the files.
        report: called with the progress.
        memories: to read shards into.
    """
    total, done = max(sum(position.own.tokens for position in positions), 1), 0

    def documents_of(split: Split) -> Iterator[Documents]:
        nonlocal done
        memory = memories.setdefault(split, Memory())
        for block in part.documents(split, origins=form.needs_origins, memory=memory):
            yield block
            done += len(block.stream)
            size = done * block.stream.itemsize
            report(JobProgress(fraction=done / total, text_bytes=size, tokens=done))

    return {
        position.split: tuple(form.write(position, documents_of(position.split), out))
        for position in positions
    }
