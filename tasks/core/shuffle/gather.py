"""From all runs to one part: the documents of a range of keys, merged and packed on scratch."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.layout import SPLITS
from streaming_ext.dataset.record import SourceIdentity
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.shuffled.keys import Ints, key_range
from streaming_ext.errors import CorruptDatasetError, DatasetError, ScratchError
from streaming_ext.text.memory import within_memory
from tasks.core.deduplicate.drops import read_drops
from tasks.core.deduplicate.left_out import CopiesLeftOut
from tasks.core.memories import Memories
from tasks.core.outputs.part_files import Origins, PartFiles
from tasks.core.shuffle.range_documents import RangeDocuments, documents_of_range
from tasks.core.shuffle.run_index import RunIndex
from tasks.core.storage import Storage
from tasks.core.workers.jobs import GatherJob, TokenizedPart
from tasks.core.workers.kept import Kept
from tasks.core.workers.messages import JobProgress, Report

_LISTED_BYTES: Final = 2**25  # of ids whose documents are listed at a time
STEP_BYTES: Final = 512 * 2**20  # of runs that are merged at a time, at most
_LEAST_STEP_BYTES: Final = 2**26  # the same, of few runs on a disk
_READ_BYTES: Final = (
    2**20
)  # about, of a run on a disk at a time: its blocks have a sixteenth of that


class MergeJob(GatherJob):
    """Merge a range of keys of all runs."""

    def do(self, kept: Kept, report: Report) -> TokenizedPart:
        """See `gather_part`."""
        output = kept.storage(self.output)
        if self.index is None:
            raise DatasetError(
                f"{output}: part {self.part.number:05} is missing, and so are its runs."
            )
        index = kept.last(read_index, output, self.index)
        return gather_part(self, output, index, report, kept.memories).brief()


def read_index(storage: Storage, file: FileRecord) -> RunIndex:
    """The index of all runs, as it was put between the stages.

    Raises:
        CorruptDatasetError: it is another one.
    """
    data = storage.read(file.path)
    if content_hash(data) != file.xxh128:
        raise CorruptDatasetError(
            f"{storage}/{file.path} is not what this run put there: something wrote over it. Run "
            "the same command again."
        )
    return RunIndex.from_bytes(data)


def gather_part(
    job: GatherJob,
    storage: Storage,
    index: RunIndex,
    report: Callable[[JobProgress], None] = lambda progress: None,
    memories: Memories | None = None,
) -> TokenizedPart:
    """Merge and pack a part's range of keys into `job.scratch`.

    Memory does not depend on the size of the dataset, but for its index.

    Args:
        job: which part, and where to.
        storage: that holds the runs.
        index: of the runs.
        report: told how far it is.
        memories: for raw shards.

    Raises:
        StorageError: a run cannot be read.
        CorruptDatasetError: a run is damaged.
        ScratchError: scratch is full or not writable.
    """
    began = time.monotonic()
    pa.default_memory_pool().release_unused()  # what tokenizing had
    number, folder = job.part.number, Path(job.scratch)
    most = STEP_BYTES if storage.remote else _step_bytes(len(index.parts))
    steps = index.steps(*key_range(number - job.first, job.parts), within_memory(most))
    copies = CopiesLeftOut(read_drops(storage, job.drops, number - job.first), number, job.spec)
    documents = text_bytes = tokens = 0
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files = PartFiles(folder, number, job.spec, {} if memories is None else memories)
        for done, (start, end) in enumerate(steps, start=1):
            found = documents_of_range(storage, index, start, end, job.spec)
            order = found.order
            stay = copies.stay(found.sources[order], found.rows[order], found.lengths[order])
            order = order[stay]
            for piece in found.pieces(order, _LISTED_BYTES):
                tokens += _add(files, found, piece)
            documents += len(order)
            text_bytes += int(found.sizes[order].sum())
            report(JobProgress(fraction=done / len(steps), text_bytes=text_bytes, tokens=tokens))
            del found  # before the next is read: it may be large
        splits = files.finish()
        copies.finish(folder)
    except OSError as error:
        raise ScratchError(f"Cannot write to scratch {folder}: {error.strerror}.") from error
    packed = sum(split.documents for split in splits.values())
    if packed != documents:
        raise RuntimeError(f"part {number}: {packed} documents packed of {documents}")
    result = TokenizedPart(
        part=number,
        source=_source_of(job),
        rows=documents + copies.documents,
        duplicate_documents=copies.documents,
        duplicate_tokens=copies.tokens,
        null_documents=0,
        empty_documents=0,
        dropped_documents=dict.fromkeys(job.spec.filters.given(), 0),
        text_bytes=text_bytes,
        splits=splits,
        audited_documents=0,
        engine="none",
        seconds=time.monotonic() - began,
        ended=time.time(),
    )
    result.save(folder)
    return result


def _step_bytes(runs: int) -> int:
    """How much of runs on a disk is merged at a time: where they are few, little memory will do."""
    return min(STEP_BYTES, max(_LEAST_STEP_BYTES, _READ_BYTES * runs))


def _add(files: PartFiles, found: RangeDocuments, documents: Ints) -> int:
    """Pack and list documents in an order; returns their tokens, end-of-text ids counted."""
    tokens = 0
    for number, split in enumerate(SPLITS):
        for stream, own in found.streams(documents[found.in_holdout[documents] == bool(number)]):
            files.pack(split, stream, found.rows[own], found.lengths[own])
            tokens += len(stream)
    files.list(
        found.rows[documents],
        found.lengths[documents],
        found.in_holdout[documents],
        Origins(found.sources[documents], found.places[documents]),
        [column.take(pa.array(documents)) for column in found.values],
    )
    return tokens


def _source_of(job: GatherJob) -> SourceIdentity:
    assert job.source is not None  # noqa: S101  (the parts of a shuffle have one)
    return job.source
