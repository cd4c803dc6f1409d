"""From all runs to one part: the documents of a range of keys, merged and packed on scratch."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.record import SourceIdentity
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.shuffled.keys import Ints, Keys, key_range
from streaming_ext.errors import CorruptDatasetError, ScratchError
from tasks.core.deduplicate.drops import read_drops
from tasks.core.deduplicate.left_out import CopiesLeftOut
from tasks.core.outputs.contract import Memories
from tasks.core.outputs.part_files import Origins, PartFiles
from tasks.core.shuffle.ids_by_document import IdsByDocument
from tasks.core.shuffle.run_blocks import bytes_of_ranges, sound_blocks
from tasks.core.shuffle.run_index import Range, RunIndex
from tasks.core.shuffle.run_record import run_path
from tasks.core.shuffle.run_writer import DOCUMENT_BYTES
from tasks.core.storage import Storage
from tasks.core.workers.jobs import GatherJob, JobProgress, TokenizedPart

_TAKEN_BYTES = 2**25  # of ids that are put in order at a time


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
    number, folder = job.part.number, Path(job.scratch)
    steps = index.steps(*key_range(number, job.parts))
    copies = CopiesLeftOut(read_drops(storage, job.drops, number), number, job.spec)
    documents = text_bytes = tokens = 0
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files = PartFiles(folder, number, job.spec, {} if memories is None else memories)
        for done, (start, end) in enumerate(steps, start=1):
            found = _read(storage, index, start, end, job.spec.dtype)
            found.leave_out(copies)
            for stream, piece in found.in_order():
                files.add(
                    stream, found.rows[piece], found.lengths[piece], found.in_holdout[piece],
                    Origins(found.sources[piece], found.places[piece]),
                )  # fmt: skip
                tokens += len(stream)
            documents += len(found.order)
            text_bytes += int(found.sizes[found.order].sum())
            report(JobProgress(fraction=done / len(steps), text_bytes=text_bytes, tokens=tokens))
            del found
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


def _source_of(job: GatherJob) -> SourceIdentity:
    assert job.source is not None  # noqa: S101  (the parts of a shuffle have one)
    return job.source


@dataclass(slots=True)
class _Documents:
    """Documents of a range of keys; all arrays but the last two: (documents,)."""

    keys: Keys
    sources: Ints
    rows: Ints
    places: Ints
    lengths: Ints
    sizes: Ints
    in_holdout: npt.NDArray[np.bool_]
    ids: npt.NDArray[Any]
    order: Ints

    def leave_out(self, copies: CopiesLeftOut) -> None:
        """Keep none of the documents that are copies."""
        order = self.order
        stay = copies.stay(self.sources[order], self.rows[order], self.lengths[order])
        self.order = order[stay]

    def in_order(self) -> Iterator[tuple[npt.NDArray[Any], Ints]]:
        """The ids of documents by key, some at a time, and which documents they are."""
        itemsize = self.ids.dtype.itemsize
        documents = IdsByDocument(self.ids, self.lengths)
        # taken: (documents + 1,), bytes of ids up to each, by key
        taken = np.concatenate([[0], np.cumsum((self.lengths + 1)[self.order])]) * itemsize
        first = 0
        while first < len(self.order):
            beyond = int(np.searchsorted(taken, int(taken[first]) + _TAKEN_BYTES, side="right"))
            last = max(beyond - 1, first + 1)
            piece = self.order[first:last]
            data = documents.take(piece)
            yield (
                np.frombuffer(data, self.ids.dtype, int(taken[last] - taken[first]) // itemsize),
                piece,
            )
            first = last


def _read(storage: Storage, index: RunIndex, start: int, end: int, dtype: str) -> _Documents:
    """All documents of a range of keys, in the order of the sources."""
    ranges = [found for found in index.ranges(start, end) if found.counts.sum()]
    most = sum(int(found.offsets[-1] - found.offsets[0]) for found in ranges)
    ids = np.empty(most // np.dtype(dtype).itemsize, np.dtype(dtype).newbyteorder("<"))
    held = 0
    blocks: list[list[npt.NDArray[Any]]] = []
    for found, data in bytes_of_ranges(storage, ranges, run_path):
        for *columns, own in _blocks(storage, found, data, (start, end), dtype):
            ids[held : held + len(own)] = own
            held += len(own)
            # copied, so that what was read is let go of
            blocks.append([column.copy() for column in columns])
            blocks[-1].append(np.full(len(columns[0]), found.part))
    if not blocks:
        none = np.empty(0, np.int64)
        return _Documents(
            keys=none.astype(np.uint64), sources=none, rows=none, places=none, lengths=none,
            sizes=none, in_holdout=none.astype(np.bool_), ids=ids, order=none,
        )  # fmt: skip
    keys, of_parts, places, lengths, sizes, in_holdout, parts = (
        np.concatenate(column) for column in zip(*blocks, strict=True)
    )
    sources, rows = index.origins(parts, of_parts)
    return _Documents(
        keys=keys,
        sources=sources,
        rows=rows,
        places=places,
        lengths=lengths.astype(np.int64),
        sizes=sizes.astype(np.int64),
        in_holdout=in_holdout.astype(np.bool_),
        ids=ids[:held],
        order=np.argsort(keys, kind="stable"),  # of equal keys the first in the sources comes first
    )


def _blocks(
    storage: Storage, found: Range, data: bytes, keys: tuple[int, int], dtype: str
) -> Iterator[list[npt.NDArray[Any]]]:
    """The columns of each block, cut to a range of keys, then the ids."""
    start, last = keys[0], keys[1] - 1
    id_type = np.dtype(dtype).newbyteorder("<")
    for count, own in sound_blocks(storage, found, data, run_path):
        columns = []
        at = 0
        for kind in ("<u8", "<i8", "<i8", "<u4", "<u4", "u1"):
            columns.append(np.frombuffer(own, kind, count, at))
            at += columns[-1].nbytes
        ids = np.frombuffer(
            own, id_type, (len(own) - DOCUMENT_BYTES * count) // id_type.itemsize, at
        )
        own_keys, lengths = columns[0], columns[3]
        low = int(np.searchsorted(own_keys, np.uint64(start)))
        high = int(np.searchsorted(own_keys, np.uint64(last), side="right"))
        if (low, high) != (0, count):
            ends = np.concatenate([[0], np.cumsum(lengths.astype(np.int64) + 1)])
            ids = ids[int(ends[low]) : int(ends[high])]
            columns = [column[low:high] for column in columns]
        yield [*columns, ids]
