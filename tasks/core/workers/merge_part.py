"""Phase two: it reads the documents of a part from spills, and packs all but copies on scratch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streaming_ext.base.arrays import Ints, ceil_div
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.base.memory import within_memory
from streaming_ext.format.duplicates import duplicates_path
from streaming_ext.format.layout import SPLITS, documents_path
from streaming_ext.format.provenance import KEPT_PREFIX
from streaming_ext.format.record import PartCounts, PartRecord, SourceIdentity
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.shuffled import ascending, key_range
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.text.parts import Part
from streaming_ext.writing.part_files import Origins, PartFiles
from streaming_ext.writing.tokenize import emptied
from tasks.core.shuffle.copies import CopiesLeftOut
from tasks.core.shuffle.sort import documents_schema, ids_of
from tasks.core.shuffle.spills import (
    Blocks,
    MergeIndex,
    SpillIndex,
    SpillRecord,
    read_spill_record,
    spill_path,
    stretches,
)
from tasks.core.workers.messages import Job, JobProgress, Report, WorkerCache
from tasks.core.workers.move_part import PackedPart

MOST_STEP_BYTES: Final = 256 * 2**20  # of spills merged at a time
_LEAST_STEP_BYTES: Final = 2**25  # of spills merged at a time, if they are few and local
_READ_BYTES: Final = 2**20  # per local spill and merge, about; a block is an eighth of it
_TAKEN_BYTES: Final = 2**22  # of documents packed at a time, to fit in the cache of a core
_IN_ORDER_BYTES: Final = 2**23  # of the blocks of a part read at a time
# The fraction that is done; a batch of documents; the positions of the next ones, in order.
Steps = Iterator[tuple[float, pa.RecordBatch, Ints]]


class MergeJob(Job[PackedPart]):
    """Make packed shards on scratch from the spills of a part of phase two.

    Attributes:
        part: the number of the part, with a stand-in for its spans.
        parts: the number of parts of phase two.
        first: the number of the first of these parts.
        scratch: the folder of the result, which is replaced if it exists.
        output: the output, which holds the spills.
        source: the source in the record of the part, with a shuffle.
        index: the file of the `MergeIndex`.
    """

    RESULT = PackedPart

    part: Part
    parts: int
    first: int = 0
    scratch: Path
    output: str
    spec: DatasetSpec
    source: SourceIdentity | None = None
    index: FileRecord

    def do(self, cache: WorkerCache, report: Report) -> PackedPart:
        """Pack all documents but copies; memory grows with the index, not with the dataset.

        Raises:
            StorageError: a spill cannot be read.
            CorruptDatasetError: a spill is damaged.
            ScratchError: scratch is full or not writable.
        """
        pa.default_memory_pool().release_unused()  # the memory of phase one
        number, spec, storage = self.part.number, self.spec, cache.storage(self.output)
        index = cache.latest(MergeIndex.read, storage, self.index)
        copies = CopiesLeftOut(storage, index.copies, number - self.first, spec)
        spilled = None if spec.shuffle else read_spill_record(storage, number)
        steps = _sorted(self, storage, index) if spilled is None else _in_order(storage, spilled)
        text_bytes = tokens = documents = 0
        with emptied(self.scratch):
            files = PartFiles(self.scratch, number, spec, cache.memories)
            for fraction, found, order in steps:
                names = (found[name].to_numpy()[order] for name in ("group", "row", "tokens"))
                order = order[copies.stay(*names)]  # noqa: PLW2901
                _add(files, found, order, spec, where=f"{storage}/{spill_path(number, 0)}")
                documents += len(order)
                text_bytes += int(found["text_bytes"].to_numpy()[order].sum())
                tokens += len(order) + int(found["tokens"].to_numpy()[order].sum())
                report(JobProgress(fraction=fraction, text_bytes=text_bytes, tokens=tokens))
                del found  # free it before the next batch is read: it may be large
            splits = files.finish()
            copies.finish(self.scratch, number)
        if (packed := sum(split.documents for split in splits.values())) != documents:
            raise RuntimeError(f"part {number}: {packed} documents packed of {documents}")
        counts: dict[str, Any] = {
            "part": number,
            "source": self.source,
            "rows": documents + copies.documents,
            "null_documents": 0,
            "empty_documents": 0,
            "dropped_documents": dict.fromkeys(spec.drops, 0),
        }
        if spilled is not None:
            counts = {name: getattr(spilled, name) for name in PartCounts.model_fields}

        def listed(path: str) -> FileRecord:
            return FileRecord.of(path, (self.scratch / path).read_bytes())

        counts |= {"spec": spec, "text_bytes": text_bytes, "splits": splits}
        record = PartRecord(
            **counts,
            documents=listed(documents_path(number)),
            duplicate_documents=copies.documents,
            duplicate_tokens=copies.tokens,
            duplicates=listed(duplicates_path(number)) if spec.deduplicate else None,
        )
        return PackedPart.save(record, self.scratch)


def _sorted(job: MergeJob, storage: Storage, index: MergeIndex) -> Steps:
    """Yield the documents of a range of keys, by key, then in the order of the sources."""
    start, end = key_range(job.part.number - job.first, job.parts)
    most = MOST_STEP_BYTES
    if not storage.remote:
        most = min(most, max(_LEAST_STEP_BYTES, _READ_BYTES * len(index.documents.paths)))
    count = max(1, ceil_div(index.documents.size(start, end), within_memory(most)))
    edges = [start + (end - start) * step // count for step in range(count + 1)]
    schema = documents_schema(job.spec.keep_columns)
    for step in range(count):
        found = index.documents.read(storage, edges[step], edges[step + 1], schema)
        order = ascending(found["key"].to_numpy())
        tokens = found["tokens"].to_numpy()[order].astype(np.int64)
        edges_of_ids = np.append(0, np.cumsum(tokens + 1)) * np.dtype(job.spec.dtype).itemsize
        for first, last in stretches(edges_of_ids, _TAKEN_BYTES):
            yield (step + last / len(order)) / count, found, order[first:last]


def _in_order(storage: Storage, record: SpillRecord) -> Steps:
    """Yield the documents of a part in the order in which phase one read them."""
    index = SpillIndex.of(record.spills)
    for first, last in stretches(index.offsets, _IN_ORDER_BYTES):
        for documents in index.read_blocks(storage, Blocks(0, first, last)):
            fraction = int(index.offsets[last]) / int(index.offsets[-1])
            yield fraction, documents, np.arange(len(documents))


def _add(
    files: PartFiles, documents: pa.RecordBatch, order: Ints, spec: DatasetSpec, *, where: str
) -> None:
    """Pack and list some documents in the given order.

    Raises:
        CorruptDatasetError: a document that was known to be a copy stays.
    """
    if not len(order):
        return
    if documents["ids"].null_count and documents["ids"].take(pa.array(order)).null_count:
        raise CorruptDatasetError(
            f"{where}: a document was a copy of a text that no other part holds any more: a source "
            "changed during the run. Remove the folder shuffle of the output and run the same "
            "command again."
        )
    groups, rows, positions, tokens = (
        documents[name].to_numpy()[order].astype(np.int64)
        for name in ("group", "row", "place", "tokens")
    )
    in_holdout = documents["in_holdout"].to_numpy(zero_copy_only=False)[order]
    for number, split in enumerate(SPLITS):
        own = in_holdout == bool(number)
        if own.any():
            ids = documents["ids"].take(pa.array(order[own]))
            files.pack(split, ids_of(ids, spec.dtype), int(own.sum()))
    origins = None if spec.shuffle is None else Origins(groups, positions)
    chosen = pa.array(order)
    values = [documents[f"{KEPT_PREFIX}{name}"].take(chosen) for name in spec.keep_columns]
    files.documents.add(rows, tokens, in_holdout, origins, values)
