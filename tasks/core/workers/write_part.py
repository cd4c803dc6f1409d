"""From a part on scratch to its place on the output, recorded last."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streaming_ext.base.errors import StorageError
from streaming_ext.format.duplicates import duplicates_path
from streaming_ext.format.layout import documents_path, record_path
from streaming_ext.format.record import PartCounts, PartRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage, uploads
from streaming_ext.text.parts.part import Part
from tasks.core.shuffle.records import SpillRecord, spill_record_path
from tasks.core.workers.jobs import TokenizedPart, WrittenPart
from tasks.core.workers.messages import Job, JobProgress, Kept, Report


class WriteJob(Job[WrittenPart]):
    """Write one tokenized part to the output and record it."""

    RESULT = WrittenPart

    part: Part
    scratch: str
    output: str
    spec: DatasetSpec

    def do(self, kept: Kept, report: Report) -> WrittenPart:
        """See `write_part`."""
        return write_part(self, kept.storage(self.output), report)


def write_part(
    job: WriteJob, storage: Storage, report: Callable[[JobProgress], None] = lambda progress: None
) -> WrittenPart:
    """Put in place the files of one part; the record goes last and makes it count.

    Scratch keeps them, so that this can be done again.

    Raises:
        StorageError: the output is full, gone or not writable, or scratch is not this part's.
    """
    began = time.monotonic()
    scratch, first = Path(job.scratch), job.part.spans[0].source.url
    part = TokenizedPart.saved(scratch)
    if (part.part, part.source.url) != (job.part.number, first):
        raise StorageError(
            f"scratch {scratch} holds part {part.part} of {part.source.url}, expected part "
            f"{job.part.number} of {first}. Does another run use the same --scratch?"
        )
    record = (
        _spill_record(part, job) if part.spills is not None else _part_record(part, job, scratch)
    )
    files = record.files()
    size, done = sum(file.size for file in files), 0
    is_part = isinstance(record, PartRecord)
    # Spills are read once and removed; what a loss of power takes is made again.
    with uploads(storage, lasting=is_part) as put:
        for file in files:
            _require(scratch / file.path, file.size)
            put(file.path, scratch / file.path)
            done += file.size
            report(JobProgress(fraction=done / max(size, 1)))
    path = record_path(record.part) if is_part else spill_record_path(record.part)
    storage.put(path, to_json(record))
    lists = record.lists if isinstance(record, PartRecord) else record.digest_files
    held = [file for file in files if file not in lists]
    return WrittenPart(
        summary=record.summary() if isinstance(record, PartRecord) else None,
        shards=len(held),
        shard_bytes=sum(file.size for file in held),
        seconds=time.monotonic() - began,
    )


def _spill_record(part: TokenizedPart, job: WriteJob) -> SpillRecord:
    return SpillRecord(
        **_counts(part, job),
        documents=part.span_documents,
        whole_version=part.whole_version,
        spills=part.spills or (),
        digests=part.digests,
    )


def _part_record(part: TokenizedPart, job: WriteJob, scratch: Path) -> PartRecord:
    documents = documents_path(part.part)
    duplicates = duplicates_path(part.part)
    return PartRecord(
        **_counts(part, job),
        documents=FileRecord.of(documents, (scratch / documents).read_bytes()),
        duplicate_documents=part.duplicate_documents,
        duplicate_tokens=part.duplicate_tokens,
        duplicates=None
        if job.spec.deduplicate is None
        else FileRecord.of(duplicates, (scratch / duplicates).read_bytes()),
    )


def _counts(part: TokenizedPart, job: WriteJob) -> dict[str, Any]:
    """The fields that both records have: those of the part, which have the same names."""
    fields = PartCounts.model_fields.keys() - {"spec"}
    return {"spec": job.spec, **{name: getattr(part, name) for name in fields}}


def _require(file: Path, size: int) -> None:
    found = file.stat().st_size if file.is_file() else None
    if found != size:
        raise StorageError(
            f"scratch file {file} is {'gone' if found is None else f'of {found} bytes'}, expected "
            f"{size} bytes. Does another run use the same --scratch?"
        )
