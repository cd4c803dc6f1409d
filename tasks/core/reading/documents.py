"""The documents of a part of a dataset: its lists, and its shards, cut at end-of-text ids."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import CorruptDatasetError, UsageError, command
from streaming_ext.format.compression import decompress
from streaming_ext.format.condition import Condition
from streaming_ext.format.duplicates import Duplicates, codes, duplicates_kind
from streaming_ext.format.layout import SPLITS, Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.provenance import (
    KEPT_PREFIX,
    ListedRows,
    SourceRows,
    added_values,
    documents_limit,
    read_provenance,
)
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, content_hash
from streaming_ext.format.shard import Shard, TokenArray
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.text.documents.columns import untyped_if_null
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.split_writer import Memory
from tasks.core.reading.dataset_files import (
    DatasetFiles,
    naming,
    origin_rows_of,
    read_listed,
    read_record,
)


def documents_of(files: DatasetFiles, record: PartRecord, *, values: bool = False) -> pa.Table:
    """Return the list of all documents of a part; each takes about 40 bytes of memory.

    Columns: `row`, `split` (the index in `SPLITS`), `tokens` without the end-of-text id, `source`
    and `place`. The last two are the part and the row, unless the dataset is shuffled; see
    `ListedRows`.

    Args:
        files: the files of the dataset.
        record: the record of the part.
        values: True to read kept columns too; their names get a prefix.

    Raises:
        CorruptDatasetError: the list is not as recorded; the message does not name the file.
        StorageError: it cannot be read.
    """
    kept = record.spec.keep_columns
    data = files.read(record.documents, limit=documents_limit(record.rows, len(kept)))
    none = np.empty(0, np.int64)
    tables = [_table_of(record, ListedRows(none, none.astype(np.int8), none), {})]
    found = 0
    for batch in read_provenance(data):
        found += len(batch.rows)
        if found > record.rows:
            raise CorruptDatasetError(f"lists {found} documents or more of {record.rows} rows")
        if (*batch.values, batch.sources is None) != (*kept, record.spec.shuffle is None):
            raise CorruptDatasetError("its columns are not those of the record's specification")
        tables.append(_table_of(record, batch, batch.values if values else {}))
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def listed_documents(files: DatasetFiles, record: PartRecord, *, values: bool = False) -> pa.Table:
    """Return what `documents_of` returns; an error about damage names the file."""
    with naming(files, record.documents.path):
        return documents_of(files, record, values=values)


def document_codes(listed: pa.Table) -> Ints:
    """Return the `codes` of listed documents, (documents,)."""
    return codes(listed["source"].to_numpy(), listed["row"].to_numpy())


def _table_of(record: PartRecord, batch: ListedRows, values: Mapping[str, pa.Array]) -> pa.Table:
    own = np.full(len(batch.rows), record.part)
    columns = {
        "row": batch.rows,
        "split": batch.splits,
        "tokens": batch.tokens,
        "source": own if batch.sources is None else batch.sources,
        "place": batch.rows if batch.positions is None else batch.positions,
    }
    kept = {f"{KEPT_PREFIX}{name}": untyped_if_null(column) for name, column in values.items()}
    return pa.table({**columns, **kept})


def duplicates_of(files: DatasetFiles, record: PartRecord) -> Duplicates:
    """Return the documents that a part left out as copies.

    Raises:
        CorruptDatasetError: the list is not as recorded; the message does not name the file.
        StorageError: it cannot be read.
    """
    kind = duplicates_kind(near=record.spec.listed_near is not None)
    if record.duplicates is None:
        return kind.joined([])
    data = files.read(record.duplicates, limit=kind.limit(record.duplicate_documents))
    return kind.joined(kind.read(data, shuffled=record.spec.shuffle is not None))


Ids = npt.NDArray[Any]  # uint16 or uint32
Bytes = npt.NDArray[np.uint8]
_BLOCK = 2**19  # ids: they stay in a core's cache between the comparison and the search


def read_shard(
    files: DatasetFiles,
    split: Split,
    shard: Shard,
    spec: DatasetSpec,
    memory: Memory | None = None,
    *,
    before: int = 0,
) -> tuple[TokenArray, Bytes]:
    """Read a shard; return its samples, (samples, sequence_length), and the memory that holds it.

    Args:
        files: the files of the dataset.
        split: the split of the shard.
        shard: the shard to read.
        spec: the specification of the dataset.
        memory: the memory to read into.
        before: the number of bytes to leave free before the shard, for `joined`.

    Raises:
        CorruptDatasetError: it is damaged; the message does not name the file.
        StorageError: it cannot be read.
    """
    shard_format = spec.shard_format
    if not 0 < shard.samples <= shard_format.samples_per_shard:
        raise CorruptDatasetError(
            f"recorded with {shard.samples} samples, expected 1 to {shard_format.samples_per_shard}"
        )
    raw_size = shard_format.raw_size(shard.samples)
    stored = FileRecord(path=f"{split}/{shard.name}", size=shard.size, xxh128=shard.hash)
    # No codec makes incompressible data this much longer.
    files.check_size(stored, limit=raw_size + raw_size // 8 + 2**16)
    room = (memory or Memory()).of(before + stored.size + 1)
    files.read_into(stored, room.data[before:])
    raw: bytes | memoryview = room.data[before:-1]
    if shard.zip_name is not None:
        raw = decompress(raw, codec=spec.compression, raw_size=raw_size)
        if (found := content_hash(raw)) != shard.raw_hash:
            raise CorruptDatasetError(
                f"its content hash is {found} once unpacked, expected {shard.raw_hash}"
            )
    return shard_format.tokens_of(raw, shard.samples), room


def joined(first: Sequence[Ids], ids: Ids, memory: Bytes) -> Ids:
    """Join arrays of ids, if possible without a copy of the last one.

    If `ids` lie in `memory`, the others are written directly before them: over the header of the
    shard, which was checked, and the bytes that were left free.
    """
    size = sum(some.nbytes for some in first)
    if not size:
        return ids
    at = ids.ctypes.data - memory.ctypes.data
    if not np.may_share_memory(ids, memory) or at < size:
        return np.concatenate([*first, ids])
    count = size // ids.itemsize
    stream = np.frombuffer(memory, ids.dtype, count + len(ids), at - size)
    np.concatenate(first, out=stream[:count])
    return stream


def document_ends(ids: Ids, eot: int) -> Ints:
    """Return the positions after each end-of-text id, (documents,)."""
    found = [
        np.flatnonzero(ids[first : first + _BLOCK] == eot) + first + 1
        for first in range(0, len(ids), _BLOCK)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class DocumentOrigins:
    """The source and row of each document.

    Attributes:
        source_rows: the source rows of the part.
        sources: the number of each document's source; of its part, unless shuffled: (documents,).
        rows: the row of each document, (documents,).
    """

    source_rows: SourceRows
    sources: Ints
    rows: Ints


@dataclass(frozen=True, slots=True)
class DocumentBlock:
    """Consecutive documents of a split of a part, each complete.

    Attributes:
        stream: the ids, with an end-of-text id after each document, (tokens,).
        ends: the end of each document in the stream, after its end-of-text id, (documents,).
        origins: the source and row of each document, if requested.
    """

    stream: Ids
    ends: Ints
    origins: DocumentOrigins | None = None

    @property
    def lengths(self) -> Ints:
        """The tokens of each document, with its end-of-text id, (documents,)."""
        return np.diff(self.ends, prepend=0)

    def texts(self, tokenizer: Tokenizer, chosen: Ints | slice = slice(None)) -> Iterator[bytes]:
        """Yield the texts of all documents of the block, or of the `chosen` ones, in UTF-8."""
        begins = tokenizer.bos_id is not None
        ends, lengths = self.ends[chosen].tolist(), self.lengths[chosen].tolist()
        for end, length in zip(ends, lengths, strict=True):
            yield tokenizer.decode_bytes(self.stream[end - length + begins : end - 1].tolist())


class PartOfDataset:
    """One part of a published dataset, open for reading.

    Args:
        storage: the storage of the dataset.
        manifest: the manifest of the dataset.
        part: the number of the part.

    Attributes:
        files: the files of the part.
        record: the record of the part.

    Raises:
        CorruptDatasetError: its record is missing or damaged.
    """

    def __init__(self, storage: Storage, manifest: Manifest, part: int) -> None:
        self.files, self._manifest = DatasetFiles(storage), manifest
        self.record = read_record(self.files, manifest, part)

    def documents(
        self, split: Split, *, origins: bool = False, memory: Memory | None = None
    ) -> Iterator[DocumentBlock]:
        """Yield all documents of a split, a shard at a time; each block is valid until the next.

        Args:
            split: the split of the part.
            origins: True to give blocks the source and row of each document.
            memory: the memory to read into.

        Raises:
            CorruptDatasetError: a file is missing or damaged, or differs from its record.
            StorageError: it cannot be read.
        """
        files, held, spec = self.files, self.record.splits[split], self.record.spec
        own = self._origins(split) if origins else None
        memory = memory or Memory()
        left, documents = held.tokens, 0
        rest: list[Ids] = []  # the start of a document that ends in a later shard
        for shard in held.shards:
            with naming(files, f"{split}/{shard.name}"):
                before = sum(some.nbytes for some in rest)
                samples, room = read_shard(files, split, shard, spec, memory, before=before)
            ids = samples.reshape(-1)[:left]  # (tokens of the shard,), without padding
            left -= len(ids)
            ends = document_ends(ids, spec.tokenizer.eot_id)
            if not len(ends):
                rest.append(ids.copy())
                continue
            cut, first = int(ends[-1]), documents
            documents += len(ends)
            stream, after = joined(rest, ids[:cut], room), ids[cut:]
            ends += len(stream) - cut
            rest = [after.copy()] if len(after) else []
            if own is not None:
                rows, sources = own.rows[first:documents], own.sources[first:documents]
                yield DocumentBlock(stream, ends, DocumentOrigins(own.source_rows, sources, rows))
            else:
                yield DocumentBlock(stream, ends)
        if rest or left or documents != held.documents:
            raise CorruptDatasetError(
                f"{files.storage}: {split} of part {self.record.part:05} has {documents} whole "
                f"documents, {held.documents} are recorded. {command('verify', files.storage)} "
                "checks every file."
            )

    def blocks(self, listed: pa.Table) -> Iterator[tuple[Ints, DocumentBlock]]:
        """Yield the position of each document in the list, and the documents, a shard at a time.

        Args:
            listed: the list of the documents; see `listed_documents`.

        Raises:
            CorruptDatasetError, StorageError: see `documents`.
        """
        splits = listed["split"].to_numpy()
        for split in self.record.splits:
            own, first = np.flatnonzero(splits == SPLITS.index(split)), 0
            for block in self.documents(split):
                yield own[first : first + len(block.ends)], block
                first += len(block.ends)

    def listed(self, split: Split) -> pa.Table:
        """Return the listed documents of a split; see `documents_of`."""
        listed = listed_documents(self.files, self.record)
        return listed.filter(pc.equal(listed["split"], SPLITS.index(split)))

    def added(self) -> dict[str, pa.Array]:
        """Return the values that were added to the documents, by column: (documents,) each."""
        return added_values(self._manifest, self.record, partial(read_listed, self.files))

    def where(self, condition: Condition) -> Flags:
        """Flag the documents for which a condition holds, in the order of the list: (documents,).

        Raises:
            UsageError: a column is compared with a value of another kind.
        """
        origins = self.source_rows() if "source" in condition.columns else SourceRows([])
        list_of_documents, flags = self.record.documents, [np.empty(0, np.bool_)]
        added = self.added()
        with naming(self.files, list_of_documents.path):
            for rows in read_provenance(self.files.read(list_of_documents), added):
                try:
                    flags.append(rows.where(condition, origins))
                except UsageError as error:
                    where = f"{self.files.storage}/{list_of_documents.path}"
                    raise UsageError(f"{where}: {error}.") from None
        return np.concatenate(flags)

    def source_rows(self) -> SourceRows:
        """Return the source rows of the part's documents."""
        return origin_rows_of(self.files, self._manifest, self.record)

    def _origins(self, split: Split) -> DocumentOrigins:
        own = self.listed(split)
        return DocumentOrigins(self.source_rows(), own["source"].to_numpy(), own["row"].to_numpy())
