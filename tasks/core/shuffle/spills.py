"""Spills: temporary files of documents on the output, written by phase one and read by phase two.

Below `shuffle/` of the output, until the dataset is published:

    00007.json           the record of part 7; with it, phase one of the part is done
    00007-002.spill      its third spill: documents sorted by key; without a shuffle, the only spill
                         has number 0 and the order of the source
    00007-000.digests    sorted hashes of its documents, if copies are looked for
    copies-00000.spill   copies that phase two leaves out, of one range of hashes
    index.npz            the index of all spills, made when phase one of all parts is done

A spill is a file of blocks, each an Arrow stream of one batch of documents. In a sorted spill, the
first column is the key, and block b of 2^k holds the documents whose keys begin with the bits of b.
Without a shuffle, a block is a batch of the source. The record of the part and the index of all
spills list the offset, hash and number of documents of each block, so a range of keys takes one
read per spill.
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

BLOCK_BYTES: Final = 2**17  # per block of a sorted spill, about; readers read whole blocks
MOST_BLOCKS: Final = 2**16  # per sorted spill, as the index of all spills is in memory
_TAKEN_BYTES: Final = 2**24  # of documents that are sorted at a time
_READS_AT_ONCE: Final = 16  # from object storage


def spill_path(part: int, number: int) -> str:
    """Return the path of a spill of documents."""
    return f"{SHUFFLE_FOLDER}/{part:05}-{number:03}.spill"


def digests_path(part: int, number: int) -> str:
    """Return the path of a spill of hashes."""
    return f"{SHUFFLE_FOLDER}/{part:05}-{number:03}.digests"


class Spill(Value):
    """A spill, as the record of a part lists it.

    Attributes:
        file: the file; its recorded hash is the hash of `digests`.
        offsets: the first byte of each block, then the size of the file: (blocks + 1,).
        counts: the documents in each block, (blocks,); an empty block takes no byte.
        digests: the XXH3-64 hash of each block, (blocks,).
    """

    file: FileRecord
    offsets: tuple[Count, ...]
    counts: tuple[Count, ...]
    digests: tuple[Count, ...]


class SpillWriter:
    """A writer of the blocks of a spill."""

    def __init__(self, path: str) -> None:
        """Begin an empty spill; `path` is relative to the root of the output."""
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
    """Return how many bits of a key give its block in a sorted spill of `size` bytes."""
    return min(MOST_BLOCKS.bit_length() - 1, max(0, (size // BLOCK_BYTES).bit_length()))


def sorted_blocks(
    documents: pa.RecordBatch, bits: int, first: int = 0, last: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks [first, last) of 2^bits; documents with the same key stay in their order.

    Args:
        documents: the documents of the blocks; the first column is the key.
        bits: the number of bits of a key that give its block.
        first, last: the range of blocks; all unless given.
    """
    keys = documents.column(0).to_numpy()
    order = ascending(keys)
    last = 2**bits if last is None else last
    starts = np.array([block << (KEY_BITS - bits) for block in range(first, last)], np.uint64)
    # edges: (blocks + 1,), the position of the first document of each block, in the order of keys
    edges = np.append(np.searchsorted(keys[order], starts), len(order))
    sizes = edges * (documents.nbytes / max(len(order), 1))
    for begin, end in stretches(sizes, _TAKEN_BYTES):
        taken = documents.take(pa.array(order[edges[begin] : edges[end]]))
        for start, stop in pairwise((edges[begin : end + 1] - edges[begin]).tolist()):
            yield taken.slice(start, stop - start)


def stretches(edges: npt.NDArray[Any], most: int) -> Iterator[tuple[int, int]]:
    """Group consecutive things into stretches of at most `most` bytes; a larger thing is alone.

    Args:
        edges: the first byte of each thing, then the end: (things + 1,).
        most: the most bytes per stretch.
    """
    first = 0
    while first < len(edges) - 1:
        beyond = int(np.searchsorted(edges, edges[first] + most, side="right"))
        last = max(beyond - 1, first + 1)
        yield first, last
        first = last


class Blocks(NamedTuple):
    """The blocks [first, last) of the spill with this number in an index."""

    spill: int
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class SpillIndex:
    """The locations of the blocks of all spills; spills are in the order of the sources.

    Attributes:
        paths: the path of each spill, (spills,).
        before: the number to add to the rows of each spill's documents, (spills,).
        firsts: the first block of each spill, then the number of blocks: (spills + 1,).
        counts, digests: see `Spill`; of all spills: (blocks,).
        offsets: see `Spill`; of all spills, one more than blocks per spill: (blocks + spills,).
    """

    paths: npt.NDArray[np.str_]
    before: Ints
    firsts: Ints
    counts: Ints
    digests: Keys
    offsets: Ints

    @classmethod
    def of(cls, spills: Sequence[Spill], before: Sequence[int] = ()) -> Self:
        """Return the index of some spills; `before` is 0 for each unless given."""
        return cls(
            paths=np.array([spill.file.path for spill in spills], np.str_),
            before=np.array(before or [0] * len(spills), np.int64),
            firsts=np.cumsum([0, *(len(spill.counts) for spill in spills)]),
            counts=np.array([count for spill in spills for count in spill.counts], np.int64),
            digests=np.array([digest for spill in spills for digest in spill.digests], np.uint64),
            offsets=np.array([offset for spill in spills for offset in spill.offsets], np.int64),
        )

    def edges(self, blocks: Blocks) -> Ints:
        """Return the first byte of each block, then the end: (blocks + 1,)."""
        begin = int(self.firsts[blocks.spill]) + blocks.spill
        return self.offsets[begin + blocks.first : begin + blocks.last + 1]

    def read_blocks(self, storage: Storage, blocks: Blocks) -> list[pa.RecordBatch]:
        """Read some blocks, except for empty ones.

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
        """Return the blocks that hold the keys [start, end) in each sorted spill."""
        found = []
        for spill, count in enumerate(np.diff(self.firsts).tolist()):
            shift = KEY_BITS - (count.bit_length() - 1)
            found.append(Blocks(spill, start >> shift, ((end - 1) >> shift) + 1))
        return found

    def size(self, start: int, end: int) -> int:
        """Estimate the bytes that hold the keys [start, end), given that keys are spread evenly."""
        size = 0.0
        for blocks, count in zip(self.of_keys(start, end), np.diff(self.firsts), strict=True):
            width = ((blocks.last - blocks.first) << KEY_BITS) // int(count)
            edges = self.edges(blocks)
            size += int(edges[-1] - edges[0]) * ((end - start) / width)
        return int(size)

    def read(self, storage: Storage, start: int, end: int, schema: pa.Schema) -> pa.RecordBatch:
        """Read all documents whose keys are in [start, end), spill after spill, each sorted by key.

        Args:
            storage: the storage that holds the spills.
            start, end: the range of keys.
            schema: the schema of the documents; kept columns may have other types.

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
        """Yield the blocks of several spills; from object storage, some are read at the same time.

        Raises:
            StorageError, CorruptDatasetError: see `read_blocks`.
        """
        read = partial(self.read_blocks, storage)
        if not storage.remote:
            yield from map(read, wanted)
            return
        yield from mapped_ahead(read, wanted, threads=_READS_AT_ONCE)


def as_one(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Join batches of documents, whose kept columns may differ in type."""
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
    """Return the path of the record of a part's spills."""
    return f"{SHUFFLE_FOLDER}/{part:05}.json"


class SpillRecord(PartCounts, Sealed):
    """The record of a part of phase one: counts and spills.

    Attributes:
        splits: the counts of each split, without shards: nothing is packed yet.
        documents: the number of documents of each span.
        whole_version: the version of the whole first file, if the part holds its first span.
        spills: the spills of documents, in the order of the sources.
        digests: the spills of their hashes, if copies are looked for.
    """

    documents: tuple[Count, ...]
    whole_version: str | None = None
    spills: tuple[Spill, ...]
    digests: tuple[Spill, ...] = ()

    def files(self) -> list[FileRecord]:
        """Return all files of this part except for the record."""
        return [spill.file for spill in self.spills] + self.lists

    @property
    def lists(self) -> list[FileRecord]:
        """The files that hold hashes, not documents."""
        return [spill.file for spill in self.digests]


def shard_bytes(record: PartRecord | SpillRecord) -> int:
    """Return the size of the files that hold the tokens of a part."""
    return sum(file.size for file in record.files()) - sum(file.size for file in record.lists)


def read_spill_record(storage: Storage, part: int) -> SpillRecord:
    """Read the record of a part's spills.

    Raises:
        FileNotFoundError: there is no record.
        CorruptDatasetError: it is damaged.
    """
    path = spill_record_path(part)
    return from_json(SpillRecord, storage.read(path), where=f"{storage}/{path}")


def read_spill_records(
    storage: Storage, parts: Iterable[int] | None = None
) -> dict[int, SpillRecord]:
    """Read the records of spills on the output; see `records_in`."""
    return records_in(storage, SHUFFLE_FOLDER, partial(from_json, SpillRecord), parts)


def source_numbers(parts: Sequence[Part]) -> list[list[int]]:
    """Return the source number of each span, a list per part; a file that was cut is one source.

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
        index: the file of the `MergeIndex`; None if only publishing is left.
        digests: the hashes of documents that stay, if copies are left out.
    """

    summary: ShuffleSummary | None = None
    index: FileRecord | None = None
    digests: KeptDigests | None = None

    @property
    def source(self) -> SourceIdentity | None:
        """The source in the record of a shuffled part: the table of all sources; else None."""
        return None if self.summary is None else identity_of_table(self.summary.sources)

    @property
    def files(self) -> list[FileRecord]:
        """The files of the dataset that are already put: the table of sources, and hashes."""
        digests = self.digests.files if self.digests else ()
        return [*digests, *([self.summary.sources] if self.summary else [])]


def identity_of_table(table: FileRecord) -> SourceIdentity:
    """Return the table of sources as the source of a part."""
    return SourceIdentity(url=table.path, size=table.size, version=f"xxh128:{table.xxh128}")


@dataclass(frozen=True, slots=True)
class MergeIndex:
    """The index that each part of phase two reads: documents by key, and copies to leave out.

    Attributes:
        documents: the index of the spills of documents; empty without a shuffle.
        copies: the index of the spills of copies, which have a block for each part of phase two.
    """

    documents: SpillIndex
    copies: SpillIndex

    def put(self, storage: Storage) -> FileRecord:
        """Put the index on the output, where all workers read it."""
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
            CorruptDatasetError: the file is damaged or another one.
        """
        with np.load(io.BytesIO(read_recorded(storage, file)), allow_pickle=False) as arrays:
            indexes = [
                {each.name: arrays[f"{kind}.{each.name}"] for each in fields(SpillIndex)}
                for kind in ("documents", "copies")
            ]
        return cls(*(SpillIndex(**index) for index in indexes))
