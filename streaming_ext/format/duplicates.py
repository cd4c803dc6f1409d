"""Tables of duplicates and of hashes of texts, as Parquet, read in bounded batches.

`duplicates/NNNNN.parquet`: the documents that were left out of a part as copies of others. They are
named as in the list of documents: by part and row or, if the dataset is shuffled, by source and
row. The first copy stays.

If near copies are left out, the witness stays, and the list also holds the similarity to it.

`digests/PPPPP/NNNNN.parquet`: hashes of the texts that a dataset without copies holds. An extension
compares its texts with them. The files of a generation lie in the folder named after its first
part. Each file holds one of several equal ranges of hashes, in order. If near copies are left out,
the files hold sketches, in ranges of the hash of the sketch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.format.layout import DIGESTS_FOLDER, DUPLICATES_FOLDER
from streaming_ext.format.parquet import parquet_bytes, read_batches

Comparison = Literal["exact", "normalized", "near"]
Keys = npt.NDArray[np.uint64]
ROW_BITS: Final = 40  # of the number of a row in its source or part


def codes(groups: Ints, rows: Ints) -> Ints:
    """Return a number for each document, made of its part or source and its row there."""
    return (groups.astype(np.int64) << ROW_BITS) | rows


def duplicates_path(part: int) -> str:
    """Return the path of the list of documents that were left out of a part as copies."""
    return f"{DUPLICATES_FOLDER}/{part:05}.parquet"


def kept_digests_path(first_part: int, number: int) -> str:
    """Return the path of a range of hashes of the generation with that first part."""
    return f"{DIGESTS_FOLDER}/{first_part:05}/{number:05}.parquet"


@dataclass(frozen=True)
class _Table:
    """A table of columns of one length: (documents,) each, of the type in the file or int64."""

    schema: ClassVar[pa.Schema]  # for a dataset that is not shuffled
    repeating: ClassVar[bool]  # True if a dictionary of the values is worth its size
    row_bytes: ClassVar[int]  # bytes per row of a file, at most

    @classmethod
    def limit(cls, rows: int) -> int:
        """Return an upper bound of the bytes of a file with this many rows."""
        return 2**20 + cls.row_bytes * min(rows, 2**27)

    @classmethod
    def schema_of(cls, *, shuffled: bool) -> pa.Schema:
        """Return the columns of a file."""
        group = "source" if shuffled else "part"
        return pa.schema([each.with_name(each.name.replace("part", group)) for each in cls.schema])

    @classmethod
    def joined(cls, tables: Iterable[Self]) -> Self:
        """Concatenate several tables."""
        none = cls(*(np.empty(0, _dtype(kind)) for kind in cls.schema.types))
        columns = zip(*(vars(table).values() for table in [*tables] or [none]), strict=True)
        return cls(*map(np.concatenate, columns))

    def chosen(self, which: Flags) -> Self:
        """Return the rows for which `which`, (documents,), is true."""
        return type(self)(*(column[which] for column in vars(self).values()))

    def to_bytes(self, *, shuffled: bool) -> bytes:
        """Return the table as the content of a file."""
        schema = self.schema_of(shuffled=shuffled)
        columns = zip(vars(self).values(), schema.types, strict=True)
        table = pa.table([_column(each).cast(kind) for each, kind in columns], schema=schema)
        return parquet_bytes(table, dictionary=self.repeating)

    @classmethod
    def read(cls, data: bytes, *, shuffled: bool) -> Iterator[Self]:
        """Read a file in bounded batches.

        Raises:
            CorruptDatasetError: the file is damaged, or holds other columns.
        """
        for batch in read_batches(data, cls.schema_of(shuffled=shuffled)):
            yield cls(*map(_values, batch.columns))


def _dtype(kind: pa.DataType) -> npt.DTypeLike:
    known = {pa.uint64(): np.uint64, pa.float32(): np.float32, pa.binary(): np.uint8}
    return known.get(kind, np.int64)


def _column(values: npt.NDArray[Any]) -> pa.Array:
    return pa.array(values) if values.ndim == 1 else fixed_binary(values)


def _values(column: pa.Array) -> npt.NDArray[Any]:
    if column.type != pa.binary():
        return np.asarray(column).astype(_dtype(column.type))
    sizes = np.unique(pc.binary_length(column))
    if len(sizes) > 1:
        raise CorruptDatasetError(f"holds sketches of {sizes[0]} and of {sizes[-1]} bytes")
    return fixed_bytes(column.cast(pa.binary(int(sizes[0]) if len(sizes) else 1)))


def fixed_binary(values: npt.NDArray[np.uint8]) -> pa.FixedSizeBinaryArray:
    """Convert rows of bytes, (rows, size), to an Arrow array."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(values.shape[1]), len(values), [None, buffer]
    )


def fixed_bytes(column: pa.FixedSizeBinaryArray) -> npt.NDArray[np.uint8]:
    """Return the bytes of a column as a view: (rows, size)."""
    size = column.type.byte_width
    data = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    return data[column.offset * size : (column.offset + len(column)) * size].reshape(-1, size)


@dataclass(frozen=True)
class Duplicates(_Table):
    """Some documents that were left out as copies.

    Attributes:
        groups: the part of each document, or its source if the dataset is shuffled.
        rows: the row of each document in its part or source.
        tokens: the number of ids of each document, without the end-of-text id.
        first_groups, first_rows: the part or source, and the row, of its first copy.
    """

    groups: Ints
    rows: Ints
    tokens: Ints
    first_groups: Ints
    first_rows: Ints

    schema = pa.schema(
        [
            ("part", pa.int32()),
            ("row", pa.int64()),
            ("tokens", pa.uint32()),
            ("first_part", pa.int32()),
            ("first_row", pa.int64()),
        ]
    )
    repeating = True
    row_bytes = 80


@dataclass(frozen=True)
class NearDuplicates(Duplicates):
    """Some documents that were left out as near copies.

    Attributes:
        similarities: the similarity of each document to its witness, by their sketches; the
            columns of the first copy hold the witness.
    """

    similarities: npt.NDArray[np.float32]

    schema = Duplicates.schema.append(pa.field("similarity", pa.float32()))
    row_bytes = 88


def duplicates_kind(*, near: bool) -> type[Duplicates]:
    """Return the class for lists of copies, or of near copies."""
    return NearDuplicates if near else Duplicates


@dataclass(frozen=True)
class Digests(_Table):
    """Some texts of a dataset, by hash.

    Attributes:
        high, low: the two halves of each hash of 128 bits.
        groups: the part of each document, or its source if the dataset is shuffled.
        rows: the row of each document in its part or source.
    """

    high: Keys
    low: Keys
    groups: Ints
    rows: Ints

    schema = pa.schema(
        [("high", pa.uint64()), ("low", pa.uint64()), ("part", pa.int32()), ("row", pa.int64())]
    )
    repeating = False
    row_bytes = 56  # twice the size of the values, since compression hardly shrinks hashes


@dataclass(frozen=True)
class KeptSketches(_Table):
    """Some documents of a dataset without near copies, by sketch.

    Attributes:
        groups: the part of each document, or its source if the dataset is shuffled.
        rows: the row of each document in its part or source.
        sketches: one byte per bin: (documents, bins).
    """

    groups: Ints
    rows: Ints
    sketches: npt.NDArray[np.uint8]

    schema = pa.schema([("part", pa.int32()), ("row", pa.int64()), ("sketch", pa.binary())])
    repeating = False
    row_bytes = 2**12  # twice the size of the largest sketch
