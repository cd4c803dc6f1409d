"""Spills: temporary files of documents on the output, written by phase one and read by phase two.

Below `shuffle/` of the output, until the dataset is published:

    00007.json           the record of part 7; with it, phase one of the part is done
    00007-002.spill      its third spill: documents sorted by key; without a shuffle its only one,
                         in the order of the source
    00007-000.digests    where copies are looked for: sorted hashes of its documents
    copies-00000.spill   what phase two leaves out as copies, of one range of hashes
    index.npz            of the spills, made when phase one of all parts is done

A spill is a file of blocks, each an Arrow stream of one batch of documents. Of a sorted spill the
first column is the key, and block b of 2^k holds the documents whose keys begin with the bits of b;
without a shuffle a block is a batch of the source. Where a block lies, how many documents it has
and its hash stand in the record of the part and in the index of all spills: a range of keys is one
read of each.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from typing import IO, Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import CorruptDatasetError, StorageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import SHUFFLE_FOLDER
from streaming_ext.format.manifest import KeptDigests, ShuffleSummary
from streaming_ext.format.provenance import KEPT_PREFIX
from streaming_ext.format.record import PartCounts, PartRecord, SourceIdentity
from streaming_ext.format.schema import Count, FileRecord, Sealed, Value, content_hash, from_json
from streaming_ext.format.shuffled import KEY_BITS, Keys, ascending
from streaming_ext.store import Storage
from streaming_ext.text.documents.columns import joined
from streaming_ext.text.parts import Part
from tasks.core.reading.dataset_files import read_recorded, records_in

BLOCK_BYTES: Final = 2**17  # about, of a sorted spill; a reader takes complete blocks
MOST_BLOCKS: Final = 2**16  # of a sorted spill: the index of all spills is in memory
_TAKEN_BYTES: Final = 2**24  # of documents that are put in order at a time
_READS_AT_ONCE: Final = 16  # of object storage


def spill_path(part: int, number: int) -> str:
    """The path of a spill of a part."""
    return f"{SHUFFLE_FOLDER}/{part:05}-{number:03}.spill"


def digests_path(part: int, number: int) -> str:
    """The path of a spill of the hashes of a part."""
    return f"{SHUFFLE_FOLDER}/{part:05}-{number:03}.digests"


class Spill(Value):
    """A spill, as the record of a part has it.

    Attributes:
        file: the file, whose hash is that of `digests`.
        offsets: byte that each block begins with, then the size: (blocks + 1,).
        counts: documents of each block; one without any takes no byte: (blocks,).
        digests: XXH3-64 of each block, (blocks,).
    """

    file: FileRecord
    offsets: tuple[Count, ...]
    counts: tuple[Count, ...]
    digests: tuple[Count, ...]


class SpillWriter:
    """Writes the blocks of a spill, and remembers their offsets."""

    def __init__(self, path: str) -> None:
        """Begin without a block; `path` is its place below the root of the output."""
        self._path = path
        self._offsets, self._counts, self._digests = [0], list[int](), list[int]()

    def add(self, out: IO[bytes], blocks: Iterable[pa.RecordBatch]) -> None:
        """Append blocks to the file."""
        for block in blocks:
            data = memoryview(b"")
            if block.num_rows:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, block.schema) as stream:
                    stream.write_batch(block)
                data = memoryview(sink.getvalue())
            out.write(data)
            self._offsets.append(self._offsets[-1] + len(data))
            self._counts.append(block.num_rows)
            self._digests.append(xxhash.xxh3_64_intdigest(data))

    @property
    def spill(self) -> Spill:
        """The spill that was written."""
        digest = content_hash(np.array(self._digests, "<u8").tobytes())
        return Spill(
            file=FileRecord(path=self._path, size=self._offsets[-1], xxh128=digest),
            offsets=tuple(self._offsets),
            counts=tuple(self._counts),
            digests=tuple(self._digests),
        )


def block_bits(size: int) -> int:
    """The number of bits of a key that name its block, in a sorted spill of `size` bytes."""
    return min(MOST_BLOCKS.bit_length() - 1, max(0, (size // BLOCK_BYTES).bit_length()))


def sorted_blocks(
    documents: pa.RecordBatch, bits: int, first: int = 0, last: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The blocks [first, last) of 2^bits; documents of one key stay in their order.

    Args:
        documents: the documents of the blocks; the first column is the key.
        bits: the number of bits of a key that name its block.
        first, last: all blocks unless given.
    """
    keys = documents.column(0).to_numpy()
    order = ascending(keys)
    last = 2**bits if last is None else last
    starts = np.array([block << (KEY_BITS - bits) for block in range(first, last)], np.uint64)
    # edges: (blocks + 1,), the first document of each block
    edges = np.append(np.searchsorted(keys[order], starts), len(order))
    sizes = edges * (documents.nbytes / max(len(order), 1))
    for begin, end in stretches(sizes, _TAKEN_BYTES):
        taken = documents.take(pa.array(order[edges[begin] : edges[end]]))
        for start, stop in pairwise((edges[begin : end + 1] - edges[begin]).tolist()):
            yield taken.slice(start, stop - start)


def stretches(edges: npt.NDArray[Any], most: int) -> Iterator[tuple[int, int]]:
    """Cut consecutive things into stretches of at most `most` bytes; a larger one is alone.

    Args:
        edges: the byte that each begins with, then the end: (things + 1,).
        most: the most bytes of a stretch.
    """
    first = 0
    while first < len(edges) - 1:
        beyond = int(np.searchsorted(edges, edges[first] + most, side="right"))
        last = max(beyond - 1, first + 1)
        yield first, last
        first = last


class Blocks(NamedTuple):
    """The blocks [first, last) of a spill, which has a number in an index."""

    spill: int
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class SpillIndex:
    """The locations of the blocks of all spills; spills are in the order of the sources.

    Attributes:
        paths: the path of each spill, (spills,).
        before: rows that are added to those of its documents, (spills,).
        firsts: first block of each spill, then their number: (spills + 1,).
        counts, digests: see `Spill`, (blocks,).
        offsets: the same; one more per spill: (blocks + spills,).
    """

    paths: npt.NDArray[np.str_]
    before: Ints
    firsts: Ints
    counts: Ints
    digests: Keys
    offsets: Ints

    @classmethod
    def of(cls, spills: Sequence[Spill], before: Sequence[int] = ()) -> Self:
        """The index of some spills; none has rows `before` it unless they are given."""
        return cls(
            paths=np.array([spill.file.path for spill in spills], np.str_),
            before=np.array(before or [0] * len(spills), np.int64),
            firsts=np.cumsum([0, *(len(spill.counts) for spill in spills)]),
            counts=np.array([count for spill in spills for count in spill.counts], np.int64),
            digests=np.array([digest for spill in spills for digest in spill.digests], np.uint64),
            offsets=np.array([offset for spill in spills for offset in spill.offsets], np.int64),
        )

    def edges(self, blocks: Blocks) -> Ints:
        """The byte that each block begins with, then the end: (blocks + 1,)."""
        begin = int(self.firsts[blocks.spill]) + blocks.spill
        return self.offsets[begin + blocks.first : begin + blocks.last + 1]

    def read_blocks(self, storage: Storage, blocks: Blocks) -> list[pa.RecordBatch]:
        """Those of some blocks that hold documents.

        Raises:
            StorageError: they cannot be read.
            CorruptDatasetError: a block is damaged.
        """
        path, edges = self.paths[blocks.spill], self.edges(blocks).tolist()
        try:
            data = memoryview(storage.read_range(str(path), edges[0], edges[-1]))
        except FileNotFoundError as error:
            raise StorageError(
                f"{storage}/{path} is missing: something removed it during the run. Run the "
                "same command again."
            ) from error
        found = []
        numbers = range(int(self.firsts[blocks.spill]) + blocks.first, len(self.counts))
        for number, (begin, end) in zip(numbers, pairwise(edges), strict=False):
            block = data[begin - edges[0] : end - edges[0]]
            if xxhash.xxh3_64_intdigest(block) != self.digests[number]:
                raise CorruptDatasetError(
                    f"{storage}/{path} is damaged between the bytes {begin} and {end}. Remove the "
                    "folder shuffle of the output and run the same command again."
                )
            if self.counts[number]:
                found.append(pa.ipc.open_stream(block).read_next_batch())
        return found

    def of_keys(self, start: int, end: int) -> list[Blocks]:
        """The blocks of each sorted spill that hold the keys [start, end)."""
        found = []
        for spill, count in enumerate(np.diff(self.firsts).tolist()):
            shift = KEY_BITS - (count.bit_length() - 1)
            found.append(Blocks(spill, start >> shift, ((end - 1) >> shift) + 1))
        return found

    def size(self, start: int, end: int) -> int:
        """Estimate the bytes that hold the keys [start, end), which are spread evenly."""
        size = 0.0
        for blocks, count in zip(self.of_keys(start, end), np.diff(self.firsts), strict=True):
            width = ((blocks.last - blocks.first) << KEY_BITS) // int(count)
            edges = self.edges(blocks)
            size += int(edges[-1] - edges[0]) * ((end - start) / width)
        return int(size)

    def read(self, storage: Storage, start: int, end: int, schema: pa.Schema) -> pa.RecordBatch:
        """All documents whose keys are in [start, end), by spill and not sorted among spills.

        Args:
            storage: the storage that holds the spills.
            start, end: the range of keys.
            schema: the schema of the documents, but for the types of kept columns.

        Raises:
            StorageError: a spill cannot be read.
            CorruptDatasetError: a spill is damaged.
        """
        wanted = [blocks for blocks in self.of_keys(start, end) if np.ptp(self.edges(blocks))]
        found, counts = [], []
        for batches in self.read_all(storage, wanted):
            first = int(np.searchsorted(batches[0].column(0).to_numpy(), np.uint64(start)))
            batches[0] = batches[0].slice(first)
            keys = batches[-1].column(0).to_numpy()
            last = int(np.searchsorted(keys, np.uint64(end - 1), side="right"))
            batches[-1] = batches[-1].slice(0, last)
            found += batches
            counts.append(sum(batch.num_rows for batch in batches))
        documents = as_one(found, schema)
        if self.before.any():
            before = np.repeat(self.before[[blocks.spill for blocks in wanted]], counts)
            rows = pa.array(documents["row"].to_numpy() + before)
            documents = documents.set_column(schema.get_field_index("row"), "row", rows)
        return documents

    def read_all(
        self, storage: Storage, wanted: Sequence[Blocks]
    ) -> Iterator[list[pa.RecordBatch]]:
        """The blocks of several spills, read from object storage some at a time.

        Raises:
            StorageError, CorruptDatasetError: see `read_blocks`.
        """
        read = partial(self.read_blocks, storage)
        if not storage.remote:
            yield from map(read, wanted)
            return
        yield from mapped_ahead(read, wanted, threads=_READS_AT_ONCE)


def as_one(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Batches of documents, one after another; kept columns may have other types in each."""
    columns = []
    for number, field in enumerate(schema):
        arrays = [batch.column(number) for batch in batches] or [pa.array([], field.type)]
        if field.name.startswith(KEPT_PREFIX):
            columns.append(joined(field.name.removeprefix(KEPT_PREFIX), arrays))
        else:
            columns.append(pa.concat_arrays(arrays))
    return pa.record_batch(columns, names=schema.names)


INDEX_PATH = f"{SHUFFLE_FOLDER}/index.npz"


def spill_record_path(part: int) -> str:
    """The path of the record of a part's spills."""
    return f"{SHUFFLE_FOLDER}/{part:05}.json"


class SpillRecord(PartCounts, Sealed):
    """The record of a part of phase one: counts and spills.

    Attributes:
        splits: the counts alone; nothing is packed yet.
        documents: the number of documents of each span.
        whole_version: the version of all of the first file, if the part holds the first span of it.
        spills: the spills of documents, in the order of the sources.
        digests: spills of their hashes, if copies are looked for.
    """

    documents: tuple[Count, ...]
    whole_version: str | None = None
    spills: tuple[Spill, ...]
    digests: tuple[Spill, ...] = ()

    def files(self) -> list[FileRecord]:
        """Every file of this part but the record itself."""
        return [spill.file for spill in self.spills] + self.lists

    @property
    def lists(self) -> list[FileRecord]:
        """Those that hold no documents, but hashes."""
        return [spill.file for spill in self.digests]


def shard_bytes(record: PartRecord | SpillRecord) -> int:
    """Size of the files that hold the tokens of a part."""
    return sum(file.size for file in record.files()) - sum(file.size for file in record.lists)


def read_spill_record(storage: Storage, part: int) -> SpillRecord:
    """The record of the spills of a part.

    Raises:
        FileNotFoundError: there is none.
        CorruptDatasetError: it is damaged.
    """
    path = spill_record_path(part)
    return from_json(SpillRecord, storage.read(path), where=f"{storage}/{path}")


def read_spill_records(
    storage: Storage, parts: Iterable[int] | None = None
) -> dict[int, SpillRecord]:
    """The records of spills on the output; see `records_in`."""
    return records_in(storage, SHUFFLE_FOLDER, partial(from_json, SpillRecord), parts)


def source_numbers(parts: Sequence[Part]) -> list[list[int]]:
    """The number of the source of each span, a list a part; a file that was cut is one source.

    a.parquet [0-5] [5-9], b.parquet, c.parquet    are the sources 0, 0, 1, 2
    """
    found: list[list[int]] = []
    number, last = -1, ("", -1)
    for part in parts:
        numbers = []
        for source_span in part.spans:
            begin, end = source_span.span or (0, source_span.source.size)
            number += not (begin and last == (source_span.source.url, begin))
            last = (source_span.source.url, end)
            numbers.append(number)
        found.append(numbers)
    return found


@dataclass(frozen=True, slots=True)
class MergeInput:
    """The input of all parts of phase two.

    Attributes:
        summary: the summary of the sources, for the manifest; None without a shuffle.
        index: the index of the spills; None where only publishing is left.
        digests: hashes of what stays, if copies are left out.
    """

    summary: ShuffleSummary | None = None
    index: FileRecord | None = None
    digests: KeptDigests | None = None

    @property
    def source(self) -> SourceIdentity | None:
        """The source in the record of a part, with a shuffle: all sources."""
        return None if self.summary is None else identity_of_table(self.summary.sources)

    @property
    def files(self) -> list[FileRecord]:
        """The files of it beside the parts of the dataset: the table of sources, and hashes."""
        digests = self.digests.files if self.digests else ()
        return [*digests, *([self.summary.sources] if self.summary else [])]


def identity_of_table(table: FileRecord) -> SourceIdentity:
    """The table of sources as the source of a part."""
    return SourceIdentity(url=table.path, size=table.size, version=f"xxh128:{table.xxh128}")


@dataclass(frozen=True, slots=True)
class MergeIndex:
    """The index that each part of phase two reads: documents by key, and copies to leave out.

    Attributes:
        documents: spills of a shuffle; none without one.
        copies: spills of copies, of a block for each part of phase two.
    """

    documents: SpillIndex
    copies: SpillIndex

    def put(self, storage: Storage) -> FileRecord:
        """Write it for all workers."""
        file = io.BytesIO()
        indexes = {"documents": self.documents, "copies": self.copies}
        np.savez(
            file,
            **{
                f"{kind}.{name}": array
                for kind, index in indexes.items()
                for name, array in vars(index).items()
            },
        )
        storage.put(INDEX_PATH, file.getvalue())
        return FileRecord.of(INDEX_PATH, file.getvalue())

    @classmethod
    def read(cls, storage: Storage, file: FileRecord) -> Self:
        """Read the index that `put` wrote.

        Raises:
            CorruptDatasetError: the file is another one.
        """
        with np.load(io.BytesIO(read_recorded(storage, file)), allow_pickle=False) as arrays:
            indexes = [
                {each.name: arrays[f"{kind}.{each.name}"] for each in fields(SpillIndex)}
                for kind in ("documents", "copies")
            ]
        return cls(*(SpillIndex(**index) for index in indexes))
