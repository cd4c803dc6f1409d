"""Writing the sorted runs of a part to scratch, in memory that does not grow with the part.

A run is a sequence of blocks. Block b of 2^k holds the documents whose keys begin with the bits of
b, sorted, as arrays one after another; n documents of t ids, end-of-text ids counted:

    keys 8n | rows 8n | places 8n | lengths 4n | text sizes 4n | in holdout n | ids t

and, where columns are kept, what `kept_in_runs` puts behind.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.dataset.shuffled.keys import KEY_BITS, Ints, ascending, document_keys
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.text.documents.kept_values import joined
from streaming_ext.text.memory import within_memory
from tasks.core.shuffle.ids_by_document import IdsByDocument
from tasks.core.shuffle.kept_in_runs import packed
from tasks.core.shuffle.run_record import Run, run_path

RUN_BYTES: Final = 384 * 2**20  # of a run, sorted in memory
BLOCK_BYTES: Final = 2**16  # about; a reader takes whole blocks
DOCUMENT_BYTES: Final = 33  # of a document in a block beside its ids
_TAKEN_BYTES = 2**24  # of ids that are put in order at a time
MOST_BLOCKS: Final = 2**16  # of a run: the index of all runs is in memory


class RunWriter:
    """The runs of one part, open for writing."""

    def __init__(
        self, folder: Path, part: int, spec: DatasetSpec, *, run_bytes: int | None = None
    ) -> None:
        """Begin with no run.

        Args:
            folder: an empty one on scratch.
            part: number of the part.
            spec: with the seed of the shuffle.
            run_bytes: of a run, at most; a batch of documents that has more is a run of its own.
                Less where a worker may not take so much.
        """
        self._folder, self._part, self._spec = folder, part, spec
        self._run_bytes = within_memory(run_bytes or RUN_BYTES)
        self._dtype = np.dtype(spec.dtype).newbyteorder("<")
        self._room = np.empty(self._run_bytes // self._dtype.itemsize, self._dtype)
        self._begin()
        self.runs: list[Run] = []
        self.counts: dict[bool, tuple[int, int]] = {False: (0, 0), True: (0, 0)}

    def _begin(self) -> None:
        self._ids = self._documents = 0
        self._large: npt.NDArray[Any] | None = None
        self._columns: list[Sequence[npt.NDArray[Any]]] = []
        self._values: list[Sequence[pa.Array]] = []
        self._value_bytes = 0

    def add(
        self,
        stream: npt.NDArray[Any],
        *,
        sources: Ints,
        places: Ints,
        rows: Ints,
        lengths: Ints,
        sizes: Ints,
        in_holdout: npt.NDArray[np.bool_],
        values: Sequence[pa.Array] = (),
    ) -> None:
        """Append documents in the order of the sources; all arrays but the first: (documents,).

        Args:
            stream: their ids, an end-of-text id behind each, (tokens,).
            sources: numbers of their sources.
            places: what names them there.
            rows: their rows in the part.
            lengths: their tokens, without end-of-text ids.
            sizes: bytes of their texts.
            in_holdout: their split.
            values: of each kept column: (documents,) each.
        """
        if not len(rows):
            return
        for held_out in (False, True):
            chosen = in_holdout == held_out
            documents, tokens = self.counts[held_out]
            count = int(chosen.sum())
            self.counts[held_out] = (documents + count, tokens + count + int(lengths[chosen].sum()))
        held = self._ids * self._dtype.itemsize + DOCUMENT_BYTES * self._documents
        held += self._value_bytes
        value_bytes = sum(column.nbytes for column in values)
        more = len(stream) * self._dtype.itemsize + DOCUMENT_BYTES * len(rows) + value_bytes
        if self._documents and held + more > self._run_bytes:
            self._flush()
        if len(stream) > len(self._room):  # alone: the run was just begun
            self._large = stream.astype(self._dtype, copy=False)
        else:
            self._room[self._ids : self._ids + len(stream)] = stream
        self._ids += len(stream)
        self._documents += len(rows)
        keys = document_keys(self._spec.shuffle_seed, sources, places)
        self._columns.append(
            (keys, rows, places, lengths.astype("<u4"), sizes.astype("<u4"), in_holdout)
        )
        self._values.append(values)
        self._value_bytes += value_bytes
        if self._large is not None:
            self._flush()

    def finish(self) -> list[Run]:
        """Write the last run; returns all of them."""
        if self._documents:
            self._flush()
        self._room = self._room[:0].copy()
        return self.runs

    def _flush(self) -> None:
        """Sort what is held, and write it as a run."""
        columns = [np.concatenate(pieces) for pieces in zip(*self._columns, strict=True)]
        keys, lengths = columns[0], columns[3]
        order = ascending(keys)
        itemsize = self._dtype.itemsize
        ids = self._room[: self._ids] if self._large is None else self._large
        documents = IdsByDocument(ids, lengths)
        bits = block_bits(documents.nbytes + DOCUMENT_BYTES * len(keys) + self._value_bytes)
        columns = [column[order] for column in columns]
        kept = self._spec.keep_columns
        taken_by = pa.array(order)
        pieces_of = zip(kept, zip(*self._values, strict=True), strict=True)
        values = [joined(name, pieces).take(taken_by) for name, pieces in pieces_of]
        # firsts: (blocks + 1,), the first document of each block
        firsts = np.searchsorted(columns[0], block_starts(bits))
        firsts = np.append(firsts, len(keys))
        starts = np.concatenate([[0], np.cumsum(columns[3].astype(np.int64) + 1)]) * itemsize
        run = RunFile(self._folder, run_path(self._part, len(self.runs)), 2**bits)
        with run:
            block = 0
            while block < 2**bits:
                # as many blocks as fill what is put in order at a time
                beyond = np.searchsorted(
                    starts[firsts], int(starts[firsts[block]]) + _TAKEN_BYTES, side="right"
                )
                after = min(max(int(beyond) - 1, block + 1), 2**bits)
                first, last = int(firsts[block]), int(firsts[after])
                taken = memoryview(b"")
                if last > first:
                    taken = memoryview(documents.take(order[first:last]))
                origin = int(starts[first])
                for number in range(block, after):
                    begin, end = int(firsts[number]), int(firsts[number + 1])
                    data = b"".join(column[begin:end].tobytes() for column in columns)
                    data += taken[int(starts[begin]) - origin : int(starts[end]) - origin]
                    if end > begin:
                        data += packed(
                            kept, [column.slice(begin, end - begin) for column in values]
                        )
                    run.add(data, end - begin)
                block = after
        self.runs.append(run.told)
        self._begin()


class RunFile:
    """The file of a sorted run, open for writing block by block."""

    def __init__(self, folder: Path, path: str, blocks: int) -> None:
        """Make it.

        Args:
            folder: on scratch.
            path: of the run, below that.
            blocks: that it will have.
        """
        self._path, self._file = path, folder / path
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._out = self._file.open("xb")
        self._digests = np.zeros(blocks, "<u8")
        self._counts = np.zeros(blocks, "<i8")
        self._offsets = np.zeros(blocks + 1, "<i8")
        self._block = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()

    def add(self, data: bytes, documents: int) -> None:
        """Append the next block."""
        self._out.write(data)
        self._digests[self._block] = xxhash.xxh3_64_intdigest(data)
        self._counts[self._block] = documents
        self._offsets[self._block + 1] = self._offsets[self._block] + len(data)
        self._block += 1

    @property
    def told(self) -> Run:
        """What the record of the part tells of it, once it is written."""
        return Run.of(self._path, self._offsets, self._counts, self._digests)


def block_bits(size: int) -> int:
    """How many bits of a key tell the block of a run of so many bytes."""
    return min(MOST_BLOCKS.bit_length() - 1, max(0, (size // BLOCK_BYTES).bit_length()))


def block_starts(bits: int) -> npt.NDArray[np.uint64]:
    """The first key of each block."""
    if not bits:
        return np.zeros(1, np.uint64)
    return np.arange(2**bits, dtype=np.uint64) << np.uint64(KEY_BITS - bits)
