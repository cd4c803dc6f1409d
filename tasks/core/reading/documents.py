"""The documents of a part of a dataset: its lists, and its shards cut at end-of-text ids."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.format.compression import decompress
from streaming_ext.format.duplicates import (
    Duplicates,
    duplicates_limit,
    read_duplicates,
)
from streaming_ext.format.layout import SPLITS, Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.provenance import (
    KEPT_PREFIX,
    DocumentRows,
    PlacesOfPart,
    PlacesOfSources,
    count_documents,
    documents_limit,
    read_provenance,
)
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, content_hash
from streaming_ext.format.shard import Shard, TokenArray
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.text.documents.kept_values import nothing_less
from streaming_ext.writing.split_writer import Memory
from tasks.core.reading.dataset_files import DatasetFiles, naming, places_of, read_record


def documents_of(files: DatasetFiles, record: PartRecord, *, values: bool = False) -> pa.Table:
    """All documents of a part, some 40 bytes of memory each.

    Columns: `row`, `split` (its place in `SPLITS`), `tokens` without the end-of-text id, `source`
    and `place`, which are the part and the row where nothing is shuffled; see `DocumentRows`.

    Args:
        files: of the dataset.
        record: of the part.
        values: whether to read what was kept of columns too, under their names behind a prefix.

    Raises:
        CorruptDatasetError: the list is not as recorded; saying what was found, not where.
        StorageError: it cannot be read.
    """
    kept = record.spec.keep_columns
    data = files.read(record.documents, limit=documents_limit(record.rows, len(kept)))
    if (found := count_documents(data)) > record.rows:
        raise CorruptDatasetError(f"lists {found} documents of {record.rows} rows")
    none = np.empty(0, np.int64)
    tables = [_table_of(record, DocumentRows(none, none.astype(np.int8), none), {})]
    for batch in read_provenance(data):
        if tuple(batch.values) != kept:
            raise CorruptDatasetError(
                f"keeps the columns {' and '.join(batch.values) or 'none'}, the record says "
                f"{' and '.join(kept) or 'none'}"
            )
        if (batch.sources is None) != (record.spec.shuffle is None):
            raise CorruptDatasetError("names sources where nothing is shuffled, or names none")
        tables.append(_table_of(record, batch, batch.values if values else {}))
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _table_of(record: PartRecord, batch: DocumentRows, values: Mapping[str, pa.Array]) -> pa.Table:
    own = np.full(len(batch.rows), record.part)
    columns = {
        "row": batch.rows,
        "split": batch.splits,
        "tokens": batch.tokens,
        "source": own if batch.sources is None else batch.sources,
        "place": batch.rows if batch.places is None else batch.places,
    }
    kept = {f"{KEPT_PREFIX}{name}": nothing_less(column) for name, column in values.items()}
    return pa.table({**columns, **kept})


def duplicates_of(files: DatasetFiles, record: PartRecord) -> Duplicates:
    """All that a part left out as copies.

    Raises:
        CorruptDatasetError: the list is not as recorded; saying what was found, not where.
        StorageError: it cannot be read.
    """
    if record.duplicates is None:
        return Duplicates.joined([])
    data = files.read(record.duplicates, limit=duplicates_limit(record.duplicate_documents))
    return Duplicates.joined([*read_duplicates(data, shuffled=record.spec.shuffle is not None)])


_AT_ONCE = 2**19  # ids, which stay in the cache of a core from one look at them to the next
Ids = npt.NDArray[Any]  # uint16 or uint32
Bytes = npt.NDArray[np.uint8]


def read_tokens(files: DatasetFiles, split: Split, shard: Shard, spec: DatasetSpec) -> TokenArray:
    """The samples of a shard.

    Raises:
        CorruptDatasetError: saying what was expected and found, not where.
        StorageError: it cannot be read.
    """
    return read_with_room(files, split, shard, spec, Memory(), before=0)[0]


def read_with_room(
    files: DatasetFiles,
    split: Split,
    shard: Shard,
    spec: DatasetSpec,
    memory: Memory,
    *,
    before: int,
) -> tuple[TokenArray, Bytes]:
    """The samples of a shard, and what it was read into: all this for `joined`.

    Args:
        files: of the dataset.
        split: of the shard.
        shard: to read.
        spec: of the dataset.
        memory: to read into.
        before: bytes to leave free before the shard.

    Raises:
        CorruptDatasetError: saying what was expected and found, not where.
        StorageError: it cannot be read.
    """
    shard_format = spec.shard_format
    if not 0 < shard.samples <= shard_format.samples_per_shard:
        raise CorruptDatasetError(
            f"recorded with {shard.samples} samples, expected 1 to {shard_format.samples_per_shard}"
        )
    raw_size = shard_format.raw_size(shard.samples)
    if shard.raw_bytes != raw_size:
        raise CorruptDatasetError(
            f"recorded with {shard.raw_bytes} raw bytes, {shard.samples} samples take {raw_size}"
        )
    stored = FileRecord(path=f"{split}/{shard.name}", size=shard.size, xxh128=shard.hash)
    # No codec makes incompressible data so much longer.
    files.check_size(stored, limit=raw_size + raw_size // 8 + 2**16)
    room = memory.of(before + stored.size + 1)
    files.read_into(stored, room.data[before:])
    raw: bytes | memoryview = room.data[before:-1]
    if shard.zip_name is not None:
        raw = decompress(raw, codec=spec.compression, raw_size=raw_size)
        if (found := content_hash(raw)) != shard.raw_hash:
            raise CorruptDatasetError(
                f"its content hash is {found} once unpacked, expected {shard.raw_hash}"
            )
    return shard_format.tokens_of(raw, shard.samples), room


def joined(begun: Sequence[Ids], ids: Ids, memory: Bytes) -> Ids:
    """Ids that were begun with and those behind them, without a copy of the latter if possible.

    Where they lie in the memory of their shard as they are, the others are put before them, over
    the header that was checked and the bytes that were left free: those of `begun` at least.
    """
    size = sum(some.nbytes for some in begun)
    if not size:
        return ids
    at = ids.ctypes.data - memory.ctypes.data
    if not np.may_share_memory(ids, memory) or at < size:
        return np.concatenate([*begun, ids])
    count = size // ids.itemsize
    stream = np.frombuffer(memory, ids.dtype, count + len(ids), at - size)
    np.concatenate(begun, out=stream[:count])
    return stream


def behind(ids: Ids, eot: int) -> npt.NDArray[np.int64]:
    """The places behind each end-of-text id, (documents,)."""
    found = [
        np.flatnonzero(ids[first : first + _AT_ONCE] == eot) + first + 1
        for first in range(0, len(ids), _AT_ONCE)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Origins:
    """Where documents come from, for formats that tell it."""

    places: PlacesOfPart | PlacesOfSources
    sources: Ints  # (documents,), of a shuffled dataset
    rows: Ints  # (documents,)


@dataclass(frozen=True, slots=True)
class Documents:
    """Consecutive whole documents of a part's split.

    Attributes:
        stream: their ids, an end-of-text id behind each, (tokens,).
        ends: where each ends in the stream, behind its end-of-text id, (documents,).
        origins: where they come from, if the format wants to know.
    """

    stream: Ids
    ends: Ints
    origins: Origins | None = None

    @property
    def lengths(self) -> Ints:
        """Tokens of each, with its end-of-text id, (documents,)."""
        return np.diff(self.ends, prepend=0)


class PartOfDataset:
    """One part of a published dataset, open for reading.

    Args:
        storage: the dataset's.
        manifest: the dataset's.
        part: its number.

    Raises:
        CorruptDatasetError: its record is missing or damaged.
    """

    def __init__(self, storage: Storage, manifest: Manifest, part: int) -> None:
        listed = manifest.parts[part].record
        files = DatasetFiles(storage, {listed.path: listed.size})
        record = read_record(files, manifest, part)
        sizes = {file.path: file.size for file in record.files()}
        if manifest.shuffled is not None:
            sizes[manifest.shuffled.sources.path] = manifest.shuffled.sources.size
        self._files = DatasetFiles(storage, sizes)
        self._manifest, self._record = manifest, record

    def documents(
        self,
        split: Split,
        *,
        origins: bool = False,
        read: Callable[[int], None] = lambda size: None,
        memory: Memory | None = None,
    ) -> Iterator[Documents]:
        """All documents of a split; see `documents_of_split`.

        Args:
            split: which one.
            origins: whether to tell where they come from.
            read, memory: see there.
        """
        blocks = documents_of_split(self._files, self._record, split, read=read, memory=memory)
        if not origins:
            yield from blocks
            return
        with naming(self._files, self._record.documents.path):
            listed = documents_of(self._files, self._record)
        own = listed.filter(pc.equal(listed["split"], SPLITS.index(split)))
        places = places_of(self._files, self._manifest, self._record)
        sources, rows, first = own["source"].to_numpy(), own["row"].to_numpy(), 0
        for block in blocks:
            last = first + len(block.ends)
            yield replace(block, origins=Origins(places, sources[first:last], rows[first:last]))
            first = last


def documents_of_split(
    files: DatasetFiles,
    record: PartRecord,
    split: Split,
    *,
    read: Callable[[int], None] = lambda size: None,
    memory: Memory | None = None,
) -> Iterator[Documents]:
    """All documents of a part's split, a shard's worth at a time, each until the next is asked for.

    Args:
        files: of the dataset.
        record: of the part.
        split: which one.
        read: called with the size of each shard that was read, in bytes.
        memory: to read into, if there is any yet.

    Raises:
        CorruptDatasetError: a file is missing or damaged, or holds what is not recorded.
        StorageError: it cannot be read.
    """
    held, spec, memory = record.splits[split], record.spec, memory or Memory()
    left, documents = held.tokens, 0
    begun: list[Ids] = []  # of a document that ends in a later shard
    for shard in held.shards:
        with naming(files, f"{split}/{shard.name}"):
            room = sum(some.nbytes for some in begun)
            samples, held_in = read_with_room(files, split, shard, spec, memory, before=room)
        ids = samples.reshape(-1)[:left]  # (tokens of the shard,), padding left out
        left -= len(ids)
        ends = behind(ids, spec.tokenizer.eot_id)
        read(shard.size)
        if not len(ends):
            begun.append(ids.copy())
            continue
        cut = int(ends[-1])
        stream, rest = ids[:cut], ids[cut:]
        ends += sum(map(len, begun))
        stream = joined(begun, stream, held_in)
        begun = [rest.copy()] if len(rest) else []
        documents += len(ends)
        yield Documents(stream, ends)
    problem = ""
    if begun or left:
        problem = "the last document has no end"
    elif documents != held.documents:
        problem = f"{documents} documents, {held.documents} are recorded"
    if problem:
        raise CorruptDatasetError(
            f"{files.storage}: {split} of part {record.part:05}: {problem}. `shardmill verify` "
            "checks every file."
        )


def chosen_documents(
    files: DatasetFiles, record: PartRecord, split: Split, lengths: Ints, taken: Flags
) -> Iterator[Documents]:
    """Some documents of a part's split, a shard's worth at a time.

    Args:
        files: of the dataset.
        record: of the part.
        split: which one.
        lengths: tokens of each of its documents as listed, without end-of-text ids, (documents,).
        taken: which of them, (documents,).

    Raises:
        CorruptDatasetError: a shard is missing or damaged, or the documents do not end there.
    """
    first = 0
    for block in documents_of_split(files, record, split):
        if not taken[first:].any():
            return
        own = slice(first, first + len(block.ends))
        first = own.stop
        if not np.array_equal(block.lengths, lengths[own] + 1):
            with naming(files, record.documents.path):
                raise CorruptDatasetError(f"documents of {split} do not end where it says")
        if taken[own].any():
            stream = block.stream[np.repeat(taken[own], block.lengths)]
            yield Documents(stream, np.cumsum(block.lengths[taken[own]]))
