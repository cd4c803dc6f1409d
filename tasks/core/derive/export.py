"""The export of a published dataset for another trainer: the plan, and the job for a part."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import EXPORT, MANIFEST, SPLITS, Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.store import LocalStorage, Storage, uploads
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.writing.split_writer import Memories, Memory
from tasks.core.derive.config import ExportConfig
from tasks.core.derive.export_format import (
    ExportFiles,
    ExportFormat,
    ExportIdentity,
    ExportManifest,
    ExportOptions,
    ExportRecord,
    Extent,
    PartPosition,
    all_spans,
    is_export,
    made_files,
    read_export,
    read_export_records,
    record_path,
)
from tasks.core.derive.formats import FORMATS
from tasks.core.engine.build import DerivedBuild, OnStatus, Published, Recorded, Words
from tasks.core.engine.lifecycle import compare, require_same
from tasks.core.engine.output_files import (
    Stretch,
    all_recorded,
    file_sizes,
    open_other,
    scratch_folder,
)
from tasks.core.reading.dataset_files import read_dataset, read_dataset_manifest, recorded_sizes
from tasks.core.reading.documents import DocumentBlock, PartOfDataset
from tasks.core.shuffle.spills import shard_bytes
from tasks.core.workers.messages import Job, JobProgress, MadePart, Report, WorkerCache


class ExportJob(Job[MadePart]):
    """Export one part: write its files, or its spans of shared files, and its record.

    Attributes:
        part: the number of the part.
        dataset: the URL of the dataset.
        output: the URL of the export.
        scratch: the folder for the part's files before they are put.
        assembly: the folder of the files that several parts write into.
        identity: the identity of the export.
        positions: the positions of the part in each split.
        totals: the extent of each split.
    """

    part: int
    dataset: str
    output: str
    scratch: Path
    assembly: Path
    identity: ExportIdentity
    positions: tuple[PartPosition, ...]
    totals: dict[Split, Extent]

    def do(self, cache: WorkerCache, report: Report) -> MadePart:
        """Export the part.

        Raises:
            CorruptDatasetError: the dataset is damaged.
            StorageError: the output or scratch is full, gone or not writable.
        """
        dataset, output = cache.storage(self.dataset), cache.storage(self.output)
        manifest = cache.latest(read_dataset_manifest, dataset, self.identity.dataset_manifest)
        form = FORMATS[self.identity.export](manifest.spec, self.identity.options, self.totals)
        part = PartOfDataset(dataset, manifest, self.part)
        shutil.rmtree(self.scratch, ignore_errors=True)
        with uploads(output) as put:
            out = ExportFiles(self.scratch, self.assembly, put)
            record = export_part(
                self.identity,
                form,
                part,
                self.positions,
                out,
                report=report,
                memories=cache.memories,
            )
        output.put(record_path(self.part), to_json(record))
        return MadePart(
            documents=record.documents,
            tokens=record.tokens,
            size=sum(span.size for span in record.spans),
        )


def export_part(
    identity: ExportIdentity,
    form: ExportFormat,
    part: PartOfDataset,
    positions: Iterable[PartPosition],
    out: ExportFiles,
    *,
    report: Report = lambda progress: None,
    memories: Memories,
) -> ExportRecord:
    """Have a format write a part; return the record of the part.

    Args:
        identity: the identity of the export.
        form: the format of the export.
        part: the part of the dataset.
        positions: the positions of the part in each split.
        out: the files to write to.
        report: a function that is called with the progress of the job.
        memories: the memories to read shards into.
    """
    done = 0

    def documents_of(split: Split) -> Iterator[DocumentBlock]:
        nonlocal done
        memory = memories.setdefault(split, Memory())
        for block in part.documents(split, origins=form.needs_origins, memory=memory):
            yield block
            done += len(block.stream)
            size, fraction = done * block.stream.itemsize, done / part.record.tokens_kept
            report(JobProgress(fraction=fraction, text_bytes=size, tokens=done))

    for position in positions:
        form.write(position, documents_of(position.split), out)
    return ExportRecord(
        identity=identity,
        part=part.record.part,
        documents=part.record.documents_kept,
        tokens=part.record.tokens_kept,
        made=tuple(out.made),
        spans=tuple(out.spans),
    )


@dataclass(frozen=True, kw_only=True)
class ExportBuild(DerivedBuild):
    """The build of an export.

    Attributes:
        dataset: the dataset that is exported.
        exported: the identity of the export.
        form: the format of the export.
    """

    config: ExportConfig
    kind: str = "export"
    dataset: Storage
    exported: ExportIdentity
    form: ExportFormat

    words: ClassVar[Words] = Words("exporting", "exported")

    @property
    def identity(self) -> ExportIdentity:
        """The identity of the export: the format, its options and the dataset."""
        return self.exported

    @property
    def manifest_path(self) -> str:
        """The path of the manifest of an export."""
        return EXPORT

    def is_published(self, output: Storage) -> bool:
        """Return whether the output has the manifest of this export."""
        if not is_export(output):
            return False
        held = read_export(output).identity
        require_same(held.model_dump(mode="json"), self.identity, where=str(output))
        return True

    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """Return the recorded parts; their bytes are on the output, or shared files on scratch."""
        shared, sizes = self.form.shared(), output.list()
        on_output = published and all(sizes.get(path) == size for path, size in shared.items())
        storage = output if on_output or not shared else LocalStorage(self.kept)
        parts = {part: record.spans for part, record in self._records(output).items()}
        return Recorded(storage=storage, parts=parts, shared=bool(shared))

    def _records(self, output: Storage) -> dict[int, ExportRecord]:
        """Read the records of the parts of this export."""
        return {
            part: record
            for part, record in read_export_records(output).items()
            if part < len(self.parts) and record.identity == self.identity
        }

    def beside(self, output: Storage) -> Mapping[str, int]:
        """Return the sizes of the records and of the files that belong to no part or to several."""
        held = read_export(output)
        return file_sizes(held.spans) | recorded_sizes(held.records) | {**self.form.shared()}

    def finish(self, output: Storage, on_status: OnStatus) -> Published:
        """Put the indexes and shared files."""
        on_status("reading the records")
        records = all_recorded(self._records(output), range(len(self.parts)), output)
        scratch = self.scratch / "publish"
        shutil.rmtree(scratch, ignore_errors=True)
        with uploads(output) as put:
            on_status("putting the indexes")
            out = ExportFiles(scratch, self.kept, put)
            self.form.finish(made_files(self.form.totals, records), out)
            for path in self.form.shared():
                on_status(f"putting {path}")
                put(path, self.kept / path)
        manifest = export_manifest(str(self.dataset), self.identity, self.form, records, out.spans)
        sizes = file_sizes(all_spans(manifest, records)) | recorded_sizes(manifest.records)
        return Published(EXPORT, to_json(manifest), sizes)


def export_manifest(
    dataset: str,
    identity: ExportIdentity,
    form: ExportFormat,
    records: Iterable[ExportRecord],
    spans: Iterable[Stretch],
) -> ExportManifest:
    """Return the manifest of an export."""
    return ExportManifest(
        identity=identity,
        dataset=dataset,
        tokenizer=form.spec.tokenizer,
        splits=dict(form.totals),
        records=tuple(
            FileRecord.of(record_path(record.part), to_json(record)) for record in records
        ),
        spans=tuple(spans),
        made_with=dict(form.made_with),
    )


def plan_export(
    config: ExportConfig, output: Storage, on_status: OnStatus = lambda words: None
) -> ExportBuild:
    """Plan an export; nothing is written.

    Raises:
        UsageError: the format cannot hold the dataset, or the output holds something else.
        ConfigMismatchError: the output holds another export, started or finished.
        DatasetError: there is no dataset to export, or it is damaged.
    """
    dataset = open_other(config.dataset, output)
    _, manifest, records = read_dataset(dataset)
    identity = ExportIdentity(
        export=config.format,
        options=ExportOptions(**config.model_dump(include={*ExportOptions.model_fields})),
        dataset_manifest=FileRecord.of(MANIFEST, dataset.read(MANIFEST)),
    )
    form, positions = plan_positions(identity, manifest, records)
    build = ExportBuild(
        config=config,
        dataset=dataset,
        exported=identity,
        form=form,
        parts=tuple(
            Part.whole(record.part, SourceFile(url=str(dataset), size=shard_bytes(record)))
            for record in records
        ),
        scratch=scratch_folder(config, output),
    )
    jobs = [
        ExportJob(
            part=part,
            dataset=str(dataset),
            output=str(output),
            scratch=build.part_scratch(part),
            assembly=build.kept,
            identity=identity,
            positions=own,
            totals=dict(form.totals),
        )
        for part, own in enumerate(positions)
    ]
    return compare(replace(build, jobs=tuple(jobs)), output)


def plan_positions(
    identity: ExportIdentity, manifest: Manifest, records: Iterable[PartRecord]
) -> tuple[ExportFormat, tuple[tuple[PartPosition, ...], ...]]:
    """Return the format of an export, and the positions of each part of the dataset in its splits.

    Raises:
        UsageError: there is no such format, or it cannot hold the dataset.
    """
    if identity.export not in FORMATS:
        raise UsageError(f"no format of exports is called {identity.export!r}.")
    make = partial(FORMATS[identity.export], manifest.spec, identity.options)
    form = make(
        {
            split: Extent(documents=held.documents, tokens=held.tokens)
            for split in SPLITS
            if (held := manifest.splits.get(split)) is not None and held.documents
        }
    )
    form.require_possible()
    before, positions = dict.fromkeys(form.totals, Extent()), []
    for record in records:
        own = []
        for split in before:
            if (part := record.splits[split]).documents:
                own.append(PartPosition(part=record.part, split=split, before=before[split]))
                before[split] += Extent(
                    documents=part.documents,
                    tokens=part.tokens,
                    files=form.files_of(part.documents, part.tokens),
                )
        positions.append(tuple(own))
    return make(before), tuple(positions)
