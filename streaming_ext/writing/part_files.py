"""The files of a part on scratch, under the names that they will have on the output."""

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
from streaming_ext.base.units import size_text
from streaming_ext.format.layout import SPLITS, Split, documents_path
from streaming_ext.format.provenance import DOCUMENTS_SCHEMA, KEPT_PREFIX, SHUFFLED_SCHEMA
from streaming_ext.format.record import SplitPart
from streaming_ext.format.shuffled import Keys
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.text.documents.columns import as_kind, common_type, joined
from streaming_ext.text.documents.document_rows import DocumentBatch
from streaming_ext.text.memory import VARIABLE as MEMORY_VARIABLE
from streaming_ext.writing.split_writer import Memories, Memory, SplitWriter

_DOCUMENTS_A_ROW_GROUP = 2**20


@dataclass(frozen=True, slots=True)
class Origins:
    """Where documents of a shuffled dataset come from; their rows are those of the sources.

    Attributes:
        sources: number of each one's source, (documents,).
        positions: what names it there, (documents,).
    """

    sources: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Some tokenized documents, in the order of the sources.

    Attributes:
        batch: that they are of.
        kept: which of its texts they are, (texts,).
        stream: their ids, an end-of-text id after each, (tokens,).
        lengths: their tokens, without end-of-text ids, (documents,).
        in_holdout: their split, (documents,).
        digests: hashes of the texts of the batch, if copies are looked for: (texts, 2).
        notes: of the texts of the batch, beside these, (texts,).
        left_out: documents that are known to be copies, without ids, (documents,).
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
        """Their rows in the source file, (documents,)."""
        return self.batch.rows[self.kept]

    @property
    def values(self) -> tuple[pa.Array, ...]:
        """Of the columns that are kept: (documents,) each."""
        if self.kept.all():
            return self.batch.values
        kept = pa.array(self.kept)
        return tuple(column.filter(kept) for column in self.batch.values)


class PartFiles:
    """The shards and the provenance of one part, open for writing."""

    def __init__(self, folder: Path, part: int, spec: DatasetSpec, memories: Memories) -> None:
        """Make the files.

        Args:
            folder: an empty one on scratch.
            part: number of the part.
            spec: how it is packed.
            memories: one a split, kept from part to part.
        """
        self._spec = spec
        with self._enough_memory():
            self._splits = {
                split: SplitWriter(folder / split, part, spec, memories.setdefault(split, Memory()))
                for split in spec.splits
            }
        schema = DOCUMENTS_SCHEMA if spec.shuffle is None else SHUFFLED_SCHEMA
        self._documents = _DocumentsFile(folder / documents_path(part), schema, spec.keep_columns)

    def add(self, tokens: Tokens) -> None:
        """Append documents."""
        rows, lengths, in_holdout = tokens.rows, tokens.lengths, tokens.in_holdout
        # ends: (documents,), where each document ends in the stream
        ends = np.cumsum(lengths + 1)
        start = first = 0
        # runs of documents of one split: each one's last document
        for last in np.flatnonzero(np.diff(in_holdout, append=~in_holdout[-1:])).tolist():
            end, after = int(ends[last]), last + 1
            split = SPLITS[int(in_holdout[last])]
            self.pack(split, tokens.stream[start:end], after - first)
            start, first = end, after
        self.list(rows, lengths, in_holdout, values=tokens.values)

    def pack(self, split: Split, stream: npt.NDArray[Any], documents: int) -> None:
        """Append documents of one split, which are to be listed too.

        Args:
            split: which one.
            stream: their ids, an end-of-text id after each, (tokens,).
            documents: how many.
        """
        with self._enough_memory():
            self._splits[split].add(stream, documents)

    def list(
        self,
        rows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        in_holdout: npt.NDArray[np.bool_],
        origins: Origins | None = None,
        values: Sequence[pa.Array] = (),
    ) -> None:
        """Say where documents come from, which are to be packed too.

        Args:
            rows: their rows in the source file, (documents,).
            lengths: their tokens, without end-of-text ids, (documents,).
            in_holdout: (documents,).
            origins: of the documents of a shuffled dataset.
            values: of each kept column: (documents,) each.
        """
        self._documents.add(rows, lengths, in_holdout, origins, values)

    def finish(self) -> dict[Split, SplitPart]:
        """Write what is left, and say what each split holds."""
        self._documents.close()
        with self._enough_memory():
            return {split: writer.finish() for split, writer in self._splits.items()}

    @contextmanager
    def _enough_memory(self) -> Iterator[None]:
        """Explain what takes the memory of a worker, if it is too little."""
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


class _DocumentsFile:
    """Where each document came from, and what its kept columns hold, as a Parquet file.

    Row groups end with what was appended, but for those of a shuffled dataset: how much of that is
    appended at a time depends on the parts that it was tokenized in, and must not show.

    A kept column has the type of all of its values, or of texts if it has none. Where a later
    row group holds values of another type than those before it, the file is written again.
    """

    def __init__(self, path: Path, schema: pa.Schema, kept: Sequence[str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._schema = schema
        self._kinds = dict.fromkeys(kept, pa.null())  # of the values so far
        self._writer = None if kept else self._open(schema)
        self._pending: list[pa.RecordBatch] = []
        self._values: list[Sequence[pa.Array]] = []  # (kept columns,) of each that is pending

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter:
        return pq.ParquetWriter(self._path, schema, compression="zstd")

    def add(
        self,
        rows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        in_holdout: npt.NDArray[np.bool_],
        origins: Origins | None,
        values: Sequence[pa.Array],
    ) -> None:
        names = np.array(SPLITS, dtype=object)[in_holdout.astype(np.int8)]
        columns = [
            pa.array(rows),
            pa.array(names, pa.string()),
            pa.array(lengths.astype(np.uint32)),
        ]
        if origins is not None:
            positions = pa.array(origins.positions, mask=origins.positions == rows)
            columns = [pa.array(origins.sources.astype(np.int32)), positions, *columns]
        batch = pa.record_batch(columns, schema=self._schema)
        first = 0
        while origins is not None and len(rows) - first >= self._room:
            end = first + self._room
            self._append(batch, values, first, end)
            first = end
        self._append(batch, values, first, len(rows))

    @property
    def _room(self) -> int:
        """Documents that the row group lacks."""
        pending: int = sum(batch.num_rows for batch in self._pending)
        return _DOCUMENTS_A_ROW_GROUP - pending

    def _append(
        self, batch: pa.RecordBatch, values: Sequence[pa.Array], first: int, end: int
    ) -> None:
        """Append the rows [first, end) of a batch."""
        self._pending.append(batch.slice(first, end - first))
        self._values.append([column.slice(first, end - first) for column in values])
        if self._room <= 0:
            self._flush()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending, self._schema).combine_chunks()
        columns = [
            joined(name, [values[number] for values in self._values])
            if self._values
            else pa.nulls(0)
            for number, name in enumerate(self._kinds)
        ]
        self._pending, self._values = [], []
        before = self._written()
        for name, column in zip(self._kinds, columns, strict=True):
            self._kinds[name] = common_type(name, [self._kinds[name], column.type])
        written = self._written()
        if self._writer is None:
            self._writer = self._open(written)
        elif written != before:
            self._writer = self._write_again(self._writer, written)
        for name, column in zip(self._kinds, columns, strict=True):
            field = written.field(f"{KEPT_PREFIX}{name}")
            table = table.append_column(field, as_kind(name, column, field.type))
        if len(table):
            self._writer.write_table(table, row_group_size=len(table))

    def _written(self) -> pa.Schema:
        """The columns of the file, as far as they are known."""
        schema = self._schema
        for name, kind in self._kinds.items():
            kept = pa.large_string() if pa.types.is_null(kind) else kind
            schema = schema.append(pa.field(f"{KEPT_PREFIX}{name}", kept))
        return schema

    def _write_again(self, writer: pq.ParquetWriter, schema: pa.Schema) -> pq.ParquetWriter:
        """Give all row groups so far the types that the columns have by now."""
        writer.close()
        before = self._path.with_suffix(".before")
        self._path.replace(before)
        again = self._open(schema)
        with pq.ParquetFile(before) as file:
            for number in range(file.num_row_groups):
                table = file.read_row_group(number, use_threads=False).combine_chunks()
                for name in self._kinds:
                    field = schema.field(f"{KEPT_PREFIX}{name}")
                    index = table.schema.get_field_index(field.name)
                    column = table.column(index).combine_chunks()
                    if column.null_count == len(column):  # held as texts while nothing was known
                        column = pa.nulls(len(column))
                    table = table.set_column(index, field, as_kind(name, column, field.type))
                again.write_table(table, row_group_size=len(table))
        before.unlink()
        return again

    def close(self) -> None:
        self._flush()
        assert self._writer is not None  # noqa: S101  (opened with the first row group)
        self._writer.close()
