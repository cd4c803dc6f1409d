"""Tokens of a part in the order of its source: what tokenizing leaves where nothing is shuffled.

One run a part, of a block for each batch of documents: rows, lengths, sizes of texts and marks,
then the ids, then what `kept_in_runs` puts behind. A mark tells the split, and whether the document
is known to be a copy and so has no ids here. The second stage reads it from its begin to its
end and leaves out copies.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.dataset.shuffled.keys import Ints
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import CorruptDatasetError, DatasetError, ScratchError
from tasks.core.deduplicate.drops import read_drops
from tasks.core.deduplicate.left_out import CopiesLeftOut
from tasks.core.memories import Memories
from tasks.core.outputs.part_files import PartFiles
from tasks.core.shuffle.ids_by_document import IdsByDocument
from tasks.core.shuffle.kept_in_runs import packed, unpacked
from tasks.core.shuffle.run_blocks import blocks_of, read_ranges, size_of
from tasks.core.shuffle.run_index import Range
from tasks.core.shuffle.run_record import (
    Run,
    RunRecord,
    heard,
    run_path,
    run_record_of,
    run_record_path,
)
from tasks.core.storage import Storage
from tasks.core.workers.jobs import GatherJob, TokenizedPart
from tasks.core.workers.kept import Kept
from tasks.core.workers.messages import JobProgress, Report

_KINDS: Final = ("<i8", "<u4", "<u4", "u1")  # rows, lengths, sizes, marks
_HELD_OUT, _LEFT_OUT = 1, 2  # bits of a mark
DOCUMENT_BYTES: Final = 17  # of a document in a run, beside its ids
_READ_BYTES: Final = 2**23  # of blocks, at a time
_AT_ONCE: Final = 2**19  # bytes of ids that are hashed and then written: a core has them near


class KeptOrderRun:
    """The run of one part, open for writing."""

    def __init__(self, folder: Path, part: int, spec: DatasetSpec) -> None:
        """Begin without a document."""
        self._path = run_path(part, 0)
        self._file = folder / self._path
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.touch(exist_ok=False)
        self._dtype = np.dtype(spec.dtype).newbyteorder("<")
        self._kept = spec.keep_columns
        self._offsets, self._counts, self._digests = [0], list[int](), list[int]()
        self.counts: dict[bool, tuple[int, int]] = {False: (0, 0), True: (0, 0)}

    def add(
        self,
        stream: npt.NDArray[Any],
        *,
        rows: Ints,
        lengths: Ints,
        sizes: Ints,
        in_holdout: npt.NDArray[np.bool_],
        left_out: npt.NDArray[np.bool_] | None = None,
        values: Sequence[pa.Array] = (),
    ) -> None:
        """Append documents; see `RunWriter.add` for the words.

        Of those that are `left_out` the stream has no ids.
        """
        if not len(rows):
            return
        marks = in_holdout * np.uint8(_HELD_OUT)
        if left_out is not None:
            marks |= left_out * np.uint8(_LEFT_OUT)
        columns = [
            column.astype(kind).tobytes()
            for column, kind in zip((rows, lengths, sizes, marks), _KINDS, strict=True)
        ]
        block = xxhash.xxh3_64()
        size = 0
        ids = stream.astype(self._dtype, copy=False).view(np.uint8).data
        pieces: list[bytes | memoryview] = [
            b"".join(columns),
            *(ids[first : first + _AT_ONCE] for first in range(0, len(ids), _AT_ONCE)),
            packed(self._kept, values),
        ]
        with self._file.open("ab") as out:  # large pieces go through it as they are
            for data in pieces:
                block.update(data)
                out.write(data)
                size += len(data)
        self._offsets.append(self._offsets[-1] + size)
        self._counts.append(len(rows))
        self._digests.append(block.intdigest())
        for held_out, (documents, tokens) in self.counts.items():
            own = lengths[in_holdout == held_out]
            self.counts[held_out] = documents + len(own), tokens + len(own) + int(own.sum())

    def finish(self) -> tuple[Run, ...]:
        """The run."""
        return (Run.of(self._path, self._offsets, self._counts, self._digests),)


class KeptOrderJob(GatherJob):
    """Take one run as it is, but for copies."""

    def do(self, kept: Kept, report: Report) -> TokenizedPart:
        """See `put_together`."""
        return put_together(self, kept.storage(self.output), report, kept.memories).brief()


def put_together(
    job: GatherJob,
    storage: Storage,
    report: Callable[[JobProgress], None] = lambda progress: None,
    memories: Memories | None = None,
) -> TokenizedPart:
    """Pack a part's documents but for the copies into `job.scratch`.

    Args:
        job: which part, and where to.
        storage: that holds its run and the lists of copies.
        report: told how far it is.
        memories: for raw shards.

    Raises:
        StorageError: the run or a list cannot be read.
        CorruptDatasetError: it is damaged.
        ScratchError: scratch is full or not writable.
    """
    began = time.monotonic()
    number, folder = job.part.number, Path(job.scratch)
    record = _record(storage, number)
    drops = read_drops(storage, job.drops, number - job.first)
    copies = CopiesLeftOut(drops, number, job.spec)
    text_bytes = tokens = 0
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files = PartFiles(folder, number, job.spec, {} if memories is None else memories)
        for fraction, rows, lengths, sizes, marks, ids, values in _blocks(storage, record):
            stay = copies.stay(np.full(len(rows), number), rows, lengths)
            in_holdout, here = (marks & _HELD_OUT) > 0, (marks & _LEFT_OUT) == 0
            _require_ids(storage, number, rows[stay & ~here])
            stream = ids
            if not stay[here].all():
                taken = IdsByDocument(ids, lengths[here]).take(np.flatnonzero(stay[here]))
                stream = np.frombuffer(taken, ids.dtype, int((lengths[stay] + 1).sum()))
            if stay.any():
                kept = [column.filter(pa.array(stay)) for column in values]
                files.add(stream, rows[stay], lengths[stay], in_holdout[stay], values=kept)
            text_bytes += int(sizes[stay].sum())
            tokens += len(stream)
            report(JobProgress(fraction=fraction, text_bytes=text_bytes, tokens=tokens))
        splits = files.finish()
        copies.finish(folder)
    except OSError as error:
        raise ScratchError(f"Cannot write to scratch {folder}: {error.strerror}.") from error
    result = TokenizedPart(
        part=number,
        source=record.source,
        pieces=record.pieces,
        rows=record.rows,
        null_documents=record.null_documents,
        empty_documents=record.empty_documents,
        bad_documents=record.bad_documents,
        bad_listed=record.bad_listed,
        dropped_documents=record.dropped_documents,
        duplicate_documents=copies.documents,
        duplicate_tokens=copies.tokens,
        text_bytes=text_bytes,
        splits=splits,
        audited_documents=0,
        engine="none",
        seconds=time.monotonic() - began,
        ended=time.time(),
    )
    result.save(folder)
    return result


def _require_ids(storage: Storage, part: int, rows: Ints) -> None:
    """Refuse to go on where a document stays that was taken for a copy.

    Raises:
        CorruptDatasetError: what it was a copy of is no longer among the sources.
    """
    if len(rows):
        raise CorruptDatasetError(
            f"{storage}/{run_path(part, 0)}: row {rows[0]} of part {part:05} was a copy of a text "
            "that no other part holds any more: a source changed during the run. Remove the folder "
            "shuffle of the output and run the same command again."
        )


def _record(storage: Storage, part: int) -> RunRecord:
    path = run_record_path(part)
    try:
        return run_record_of(storage.read(path), where=f"{storage}/{path}")
    except FileNotFoundError as error:
        raise DatasetError(
            f"{storage}/{path} is gone: something removed it during the run. Run the same command "
            "again."
        ) from error


def _blocks(
    storage: Storage, record: RunRecord
) -> Iterator[tuple[float, Ints, Ints, Ints, Ints, npt.NDArray[Any], list[pa.Array]]]:
    """Of each block: the share read with it, rows, lengths, sizes, marks, ids, kept values.

    The ids are there until the next block is asked for.
    """
    (run,) = record.runs
    end, dtype = run.file.size, np.dtype(record.spec.dtype).newbyteorder("<")
    some = list(_ranges(record.part, run))
    memory = np.empty(max((size_of([found]) for found in some), default=0), np.uint8)
    for found in some:
        (data,) = read_ranges(storage, [found], run_path, memory)
        for count, block in blocks_of(found, data):
            own, values = unpacked(record.spec.keep_columns, block)
            columns = []
            at = 0
            for kind in _KINDS:
                columns.append(np.frombuffer(own, kind, count, at).astype(np.int64))
                at += count * np.dtype(kind).itemsize
            ids = np.frombuffer(own, dtype, (len(own) - at) // dtype.itemsize, at)
            rows, lengths, sizes, marks = columns
            yield int(found.offsets[-1]) / max(end, 1), rows, lengths, sizes, marks, ids, values


def _ranges(part: int, run: Run) -> Iterator[Range]:
    """Blocks that are read at a time."""
    offsets, counts = heard(run.offsets, "<i8"), heard(run.counts, "<i8")
    digests = heard(run.digests, "<u8")
    first = 0
    while first < len(counts):
        beyond = np.searchsorted(offsets, offsets[first] + _READ_BYTES, side="right")
        last = max(int(beyond) - 1, first + 1)
        yield Range(
            part=part,
            run=0,
            offsets=offsets[first : last + 1],
            counts=counts[first:last],
            digests=digests[first:last],
        )
        first = last
