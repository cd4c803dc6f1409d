"""The files of a part on scratch, under their names in the output."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import UsageError
from streaming_ext.base.memory import VARIABLE as MEMORY_VARIABLE
from streaming_ext.base.units import size_text
from streaming_ext.format.layout import SPLITS, Split, documents_path
from streaming_ext.format.provenance import DOCUMENTS_SCHEMA, KEPT_PREFIX, SHUFFLED_SCHEMA
from streaming_ext.format.record import SplitPart
from streaming_ext.format.shuffled import Keys
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.text.documents.columns import as_kind, common_type
from streaming_ext.text.documents.document_rows import DocumentBatch
from streaming_ext.writing.split_writer import Memories, Memory, SplitWriter

_DOCUMENTS_A_ROW_GROUP = 2**20


@dataclass(frozen=True, slots=True)
class Origins:
    """The origins of documents of a shuffled dataset, whose rows are rows of the sources.

    Attributes:
        sources: the number of each document's source, (documents,).
        positions: the position of each document in its source, (documents,).
    """

    sources: Ints
    positions: Ints


@dataclass(frozen=True, slots=True)
class Tokens:
    """Some tokenized documents, in the order of the sources.

    Attributes:
        batch: the batch that holds the documents.
        kept: a mask of the batch's texts that became these documents, (texts,).
        stream: the ids of the documents, with an end-of-text id after each document, (tokens,).
        lengths: the number of tokens of each document, without end-of-text id, (documents,).
        in_holdout: a mask of the documents in the holdout, (documents,).
        digests: hashes of the batch's texts, if copies are looked for, (texts, 2).
        notes: a note on each of the batch's texts, if copies are looked for, (texts,).
        left_out: a mask of the documents that are known copies and have no ids, (documents,).
    """

    batch: DocumentBatch
    kept: Flags
    stream: npt.NDArray[Any]
    lengths: Ints
    in_holdout: Flags
    digests: Keys | None
    notes: Keys | None
    left_out: Flags

    @property
    def rows(self) -> Ints:
        """Rows of the documents in the part, (documents,)."""
        return self.batch.rows[self.kept]

    @property
    def values(self) -> tuple[pa.Array, ...]:
        """Values of the kept columns, (documents,) each."""
        if self.kept.all():
            return self.batch.values
        kept = pa.array(self.kept)
        return tuple(column.filter(kept) for column in self.batch.values)


class PartFiles:
    """The shards of one part and its list of documents, open for writing.

    Attributes:
        documents: the list of documents.
    """

    def __init__(self, folder: Path, part: int, spec: DatasetSpec, memories: Memories) -> None:
        """Make the files.

        Args:
            folder: an empty folder on scratch.
            part: number of the part.
            spec: the specification of the dataset.
            memories: the memory of each split, kept from part to part.
        """
        self._spec = spec
        with self._enough_memory():
            self._splits = {
                split: SplitWriter(folder / split, part, spec, memories.setdefault(split, Memory()))
                for split in spec.splits
            }
        self.documents = DocumentsFile(folder / documents_path(part), spec)

    def add(self, tokens: Tokens) -> None:
        """Append documents."""
        rows, lengths, in_holdout = tokens.rows, tokens.lengths, tokens.in_holdout
        # ends: (documents,), the end of each document in the stream
        ends = np.cumsum(lengths + 1)
        start = first = 0
        # Each run of consecutive documents of one split is packed at once.
        for last in np.flatnonzero(np.diff(in_holdout, append=~in_holdout[-1:])).tolist():
            end, after = int(ends[last]), last + 1
            split = SPLITS[int(in_holdout[last])]
            self.pack(split, tokens.stream[start:end], after - first)
            start, first = end, after
        self.documents.add(rows, lengths, in_holdout, values=tokens.values)

    def pack(self, split: Split, stream: npt.NDArray[Any], documents: int) -> None:
        """Append documents to the shards of one split; the caller also lists them.

        Args:
            split: the split.
            stream: their ids, with an end-of-text id after each document, (tokens,).
            documents: the number of documents.
        """
        with self._enough_memory():
            self._splits[split].add(stream, documents)

    def finish(self) -> dict[Split, SplitPart]:
        """Write what is left, and return what each split holds."""
        self.documents.close()
        with self._enough_memory():
            return {split: writer.finish() for split, writer in self._splits.items()}

    @contextmanager
    def _enough_memory(self) -> Iterator[None]:
        """Explain what takes memory if a worker has too little."""
        try:
            yield
        except MemoryError as error:
            size = size_text(self._spec.shard_size)
            raise UsageError(
                f"A shard of --shard-size {size} does not fit into the memory of a worker, where "
                f"one of each split ({', '.join(self._spec.splits)}) is packed and compressed. "
                "Lower --shard-size to 512MiB or less, or give workers more memory "
                f"({MEMORY_VARIABLE}, 4GiB unless set; with fewer --workers each has more)."
            ) from error


class DocumentsFile:
    """A Parquet file with the source row of each document and the values of its kept columns.

    A row group ends at the end of an `add`. In a shuffled dataset it ends after a fixed number of
    documents instead, because the number of documents per `add` depends on the parts in which they
    were tokenized, and the file must not.

    A kept column has the common type of all its values, or the type of texts if it has no values.
    So everything is written twice: first in the types of each `add`, then in the common types.
    """

    def __init__(self, path: Path, spec: DatasetSpec) -> None:
        """Start an empty file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._shuffled = path, spec.shuffle is not None
        self._schema = SHUFFLED_SCHEMA if self._shuffled else DOCUMENTS_SCHEMA
        self._kinds = dict.fromkeys(spec.keep_columns, pa.null())  # types of the values so far
        self._added = path.with_suffix(".added")
        self._file = pa.OSFile(str(self._added), "wb")  # closed with this object if work stops
        self._tables = 0  # number of tables in that file

    def add(
        self,
        rows: Ints,
        lengths: Ints,
        in_holdout: Flags,
        origins: Origins | None = None,
        values: Sequence[pa.Array] = (),
    ) -> None:
        """List documents; the caller also packs them.

        Args:
            rows: rows in the part, or in the sources if the dataset is shuffled, (documents,).
            lengths: the number of tokens of each document, without end-of-text id, (documents,).
            in_holdout: a mask of the documents in the holdout, (documents,).
            origins: the origins of the documents, if the dataset is shuffled.
            values: the values of each kept column, (documents,) each.
        """
        names = np.array(SPLITS, dtype=object)[in_holdout.astype(np.int8)]
        columns = [
            pa.array(rows),
            pa.array(names, pa.string()),
            pa.array(lengths.astype(np.uint32)),
        ]
        if origins is not None:
            positions = pa.array(origins.positions, mask=origins.positions == rows)
            columns = [pa.array(origins.sources.astype(np.int32)), positions, *columns]
        for name, column in zip(self._kinds, values, strict=True):
            self._kinds[name] = common_type(name, [self._kinds[name], column.type])
        schema = self._with_kept([column.type for column in values])
        with pa.ipc.new_stream(self._file, schema) as stream:
            stream.write_batch(pa.record_batch([*columns, *values], schema=schema))
        self._tables += 1

    def close(self) -> None:
        """Write the file."""
        texts = pa.large_string()
        kinds = [texts if pa.types.is_null(kind) else kind for kind in self._kinds.values()]
        schema = self._with_kept(kinds)
        self._file.close()
        with pq.ParquetWriter(self._path, schema, compression="zstd") as writer:
            for group in self._row_groups(schema):
                writer.write_table(group.combine_chunks(), row_group_size=len(group))
        self._added.unlink()

    def _with_kept(self, kinds: Sequence[pa.DataType]) -> pa.Schema:
        """Return the columns of a table, given the types of the kept columns."""
        names = [f"{KEPT_PREFIX}{name}" for name in self._kinds]
        return pa.schema([*self._schema, *zip(names, kinds, strict=True)])

    def _row_groups(self, schema: pa.Schema) -> Iterator[pa.Table]:
        waiting = schema.empty_table()
        file = pa.OSFile(str(self._added))
        for _ in range(self._tables):
            table = pa.ipc.open_stream(file).read_all()
            for index, name in enumerate(self._kinds, len(self._schema)):
                field = schema.field(index)
                table = table.set_column(index, field, as_kind(name, table[index], field.type))
            waiting = pa.concat_tables([waiting, table])
            while len(waiting) >= _DOCUMENTS_A_ROW_GROUP:
                end = _DOCUMENTS_A_ROW_GROUP if self._shuffled else len(waiting)
                yield waiting.slice(0, end)
                waiting = waiting.slice(end)
        if len(waiting):
            yield waiting
