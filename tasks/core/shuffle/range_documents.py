"""Documents of a range of keys, taken in the order of keys out of the bytes of all runs.

What costs time for each byte is done by Arrow for all documents at once: reading, and one copy of
the ids. Python sees each block, to compare it with its hash, and no document.

    keys | rows | places | lengths | sizes | splits | ids | kept values     a block of a run
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.dataset.shuffled.keys import Ints, Keys, ascending
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.text.documents.kept_values import joined
from tasks.core.shuffle.kept_in_runs import unpacked
from tasks.core.shuffle.run_blocks import read_ranges, size_of
from tasks.core.shuffle.run_index import Range, RunIndex
from tasks.core.shuffle.run_record import run_path
from tasks.core.storage import Storage

_KINDS: Final = ("<u8", "<i8", "<i8", "<u4", "<u4", "u1")  # of the columns of a block
_TAKEN_BYTES: Final = 2**22  # of ids that are put in order at a time: what a core keeps near itself
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeDocuments:
    """Documents of a range of keys, in the order of the sources; all arrays: (documents,).

    Attributes:
        keys: of the shuffle.
        sources, rows: number of the source, and row there.
        places: what names it in the source.
        lengths: tokens, without end-of-text ids.
        sizes: bytes of its text.
        in_holdout: its split.
        values: of each kept column.
        ids: where their ids lie.
    """

    keys: Keys
    sources: Ints
    rows: Ints
    places: Ints
    lengths: Ints
    sizes: Ints
    in_holdout: Bools
    values: tuple[pa.Array, ...]
    ids: "_Ids"

    @property
    def order(self) -> Ints:
        """The documents by key; of equal keys the first in the sources comes first."""
        return ascending(self.keys)

    def pieces(self, documents: Ints, most: int) -> Iterator[Ints]:
        """Documents cut into runs of so many bytes of ids each, or less.

        Args:
            documents: in an order.
            most: bytes of ids; a document that has more is alone.
        """
        # taken: (documents + 1,), bytes of ids up to each
        taken = np.concatenate([[0], np.cumsum(self.lengths[documents] + 1)]) * self.ids.itemsize
        first = 0
        while first < len(documents):
            beyond = int(np.searchsorted(taken, int(taken[first]) + most, side="right"))
            last = max(beyond - 1, first + 1)
            yield documents[first:last]
            first = last

    def streams(self, documents: Ints) -> Iterator[tuple[npt.NDArray[Any], Ints]]:
        """The ids of documents in an order, some at a time, and which documents they are."""
        for piece in self.pieces(documents, _TAKEN_BYTES):
            yield self.ids.take(piece, int((self.lengths[piece] + 1).sum())), piece


def documents_of_range(
    storage: Storage, index: RunIndex, start: int, end: int, spec: DatasetSpec
) -> RangeDocuments:
    """All documents whose keys are in [start, end).

    Raises:
        StorageError: a run cannot be read.
        CorruptDatasetError: a run is damaged.
    """
    ranges = [found for found in index.ranges(start, end) if found.counts.sum()]
    data = _bytes(storage, ranges)
    blocks = _Blocks.of(ranges, len(data))
    values = _values(spec.keep_columns, blocks, data)
    keys, of_parts, places, lengths, sizes, in_holdout = blocks.columns(data)
    own = (keys >= np.uint64(start)) & (keys <= np.uint64(end - 1))
    ids = _Ids.of(blocks, data, lengths, np.dtype(spec.dtype).newbyteorder("<"))
    parts = np.repeat(blocks.parts, blocks.counts)
    if not own.all():
        keys, of_parts, places, lengths, sizes, in_holdout, parts, ids.elements = (
            column[own]
            for column in (keys, of_parts, places, lengths, sizes, in_holdout, parts, ids.elements)
        )
        values = tuple(column.filter(pa.array(own)) for column in values)
    sources, rows = index.origins(parts, of_parts)
    return RangeDocuments(
        keys=keys,
        sources=sources,
        rows=rows,
        places=places,
        lengths=lengths,
        sizes=sizes,
        in_holdout=in_holdout.astype(np.bool_),
        values=values,
        ids=ids,
    )


def _bytes(storage: Storage, ranges: Sequence[Range]) -> Bytes:
    """All blocks of some ranges, one after another, each as its writer left it."""
    data = np.empty(size_of(ranges), np.uint8)
    read_ranges(storage, ranges, run_path, data)
    return data


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks that lie one after another in bytes.

    Attributes:
        parts: whose each is, (blocks,).
        counts: documents of each, (blocks,).
        edges: where each column of a block begins, then its ids: (blocks, columns + 1).
        end: of the last.
    """

    parts: Ints
    counts: Ints
    edges: Ints
    end: int

    @classmethod
    def of(cls, ranges: Sequence[Range], end: int) -> "_Blocks":
        """Those of some ranges that hold documents."""
        none = np.empty(0, np.int64)
        counts = np.concatenate([none, *(found.counts for found in ranges)])
        sizes = np.concatenate([none, *(np.diff(found.offsets) for found in ranges)])
        parts = np.repeat(
            np.array([found.part for found in ranges], np.int64),
            np.array([len(found.counts) for found in ranges], np.int64),
        )
        begins = np.cumsum(sizes) - sizes
        widths = np.cumsum([0, *(np.dtype(kind).itemsize for kind in _KINDS)])
        edges = begins[:, None] + counts[:, None] * widths
        filled = counts > 0
        return cls(parts[filled], counts[filled], edges[filled], end)

    @property
    def ends(self) -> Ints:
        """Where each ends, (blocks,)."""
        return np.append(self.edges[1:, 0], self.end)[: len(self.counts)]

    def columns(self, data: Bytes) -> list[Any]:
        """Each column of all blocks, whole numbers of 64 bits but for the splits."""
        pieces = _binary(data, np.append(self.edges.ravel(), self.end))
        each = self.edges.shape[1]
        documents = int(self.counts.sum())
        columns = []
        for number, kind in enumerate(_KINDS):
            taken = pieces.take(pa.array(np.arange(number, each * len(self.counts), each)))
            column = np.frombuffer(taken.buffers()[2] or b"", kind, documents)
            columns.append(column.astype(np.int64) if kind == "<u4" else column)
        return columns


class _Ids:
    """Where the ids of documents lie between the columns of their blocks.

    To Arrow, each document is a piece of the bytes, and so is what stands before those of a block.

    Attributes:
        elements: which piece each document is, (documents,).
        itemsize: of an id, in bytes.
    """

    def __init__(self, texts: pa.LargeBinaryArray, elements: Ints, dtype: np.dtype[Any]) -> None:
        self._texts, self.elements, self._dtype = texts, elements, dtype

    @property
    def itemsize(self) -> int:
        return self._dtype.itemsize

    @classmethod
    def of(cls, blocks: _Blocks, data: Bytes, lengths: Ints, dtype: np.dtype[Any]) -> "_Ids":
        """Those of the documents of blocks, of so many tokens each."""
        number = np.arange(len(blocks.counts))
        of_block = np.repeat(number, blocks.counts)
        last = np.cumsum(blocks.counts)
        # before: (documents + 1,), bytes of all ids that stand before those of each document
        before = np.concatenate([[0], np.cumsum(lengths + 1)]) * dtype.itemsize
        shift = blocks.edges[:, -1] - before[last - blocks.counts]
        elements = np.arange(len(lengths)) + of_block
        offsets = np.empty(len(lengths) + len(number) + 1, np.int64)
        offsets[elements] = before[:-1] + shift[of_block]
        offsets[last + number] = before[last] + shift
        offsets[-1] = blocks.end
        return cls(_binary(data, offsets), elements, dtype)

    def take(self, documents: Ints, tokens: int) -> npt.NDArray[Any]:
        """The ids of documents, an end-of-text id behind each, in the order that they are named in.

        Args:
            documents: by number.
            tokens: that they have together.
        """
        taken = self._texts.take(pa.array(self.elements[documents]))
        return np.frombuffer(taken.buffers()[2], self._dtype, tokens)


def _binary(data: Bytes, offsets: Ints) -> pa.LargeBinaryArray:
    """Pieces of some bytes: (offsets - 1,)."""
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _values(names: Sequence[str], blocks: _Blocks, data: Bytes) -> tuple[pa.Array, ...]:
    """The values of each kept column: (documents,) each."""
    if not names:
        return ()
    view = data.data
    found = [
        unpacked(names, view[begin:end])[1]
        for begin, end in zip(blocks.edges[:, 0].tolist(), blocks.ends.tolist(), strict=True)
    ]
    if not found:
        return tuple(pa.nulls(0) for _ in names)
    return tuple(
        joined(name, columns) for name, columns in zip(names, zip(*found, strict=True), strict=True)
    )
