"""Tables of duplicates and of hashes of texts, as Parquet, read in bounded batches.

`duplicates/NNNNN.parquet`: the documents that were left out of a part as copies of others. They are
named as in the list of documents: by part and row or, if the dataset is shuffled, by source and
row. The first copy stays.

`digests/PPPPP/NNNNN.parquet`: hashes of the texts that a dataset without copies holds. An extension
compares its texts with them. Those of one generation lie in the folder named after its first part;
each file holds an equal range of hashes, in their order.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import CorruptDatasetError, one_line
from streaming_ext.format.layout import DIGESTS_FOLDER, DUPLICATES_FOLDER

Comparison = Literal["exact", "normalized"]
Keys = npt.NDArray[np.uint64]

BYTES_A_ROW: Final = 28  # of hashes, before compression, which hardly shrinks them
_BATCH_ROWS: Final = 2**16
_MAX_THRIFT: Final = 2**20


def duplicates_path(part: int) -> str:
    """The list of the documents that were left out of a part as copies."""
    return f"{DUPLICATES_FOLDER}/{part:05}.parquet"


def kept_digests_path(first_part: int, number: int) -> str:
    """The file of a range of hashes of the generation with that first part."""
    return f"{DIGESTS_FOLDER}/{first_part:05}/{number:05}.parquet"


def duplicates_limit(num_duplicates: int) -> int:
    """What a list of this many takes at most, in bytes."""
    return 2**20 + 80 * min(num_duplicates, 2**27)


def digests_limit(documents: int) -> int:
    """What a file of this many hashes takes at most, in bytes."""
    return 2**20 + 2 * BYTES_A_ROW * documents


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Columns of one length: (documents,) each."""

    kinds: ClassVar[tuple[tuple[str, pa.DataType], ...]]  # {group} is a source or a part
    repeating: ClassVar[bool]  # whether a dictionary of the values is worth its size

    @classmethod
    def schema(cls, *, shuffled: bool) -> pa.Schema:
        """The columns of a file."""
        group = "source" if shuffled else "part"
        return pa.schema([(name.format(group=group), kind) for name, kind in cls.kinds])

    @classmethod
    def joined(cls, tables: Sequence[Self]) -> Self:
        """All rows of several tables."""
        columns = {}
        for field, (_, kind) in zip(fields(cls), cls.kinds, strict=True):
            none = np.empty(0, np.uint64 if kind == pa.uint64() else np.int64)
            columns[field.name] = np.concatenate([none, *(getattr(t, field.name) for t in tables)])
        return cls(**columns)

    def chosen(self, which: Flags) -> Self:
        """Some rows: `which` is (documents,)."""
        return type(self)(**{name: column[which] for name, column in vars(self).items()})

    def to_bytes(self, *, shuffled: bool) -> bytes:
        """The table as a file."""
        schema = self.schema(shuffled=shuffled)
        columns = zip(vars(self).values(), schema.types, strict=True)
        table = pa.table([pa.array(each).cast(kind) for each, kind in columns], schema=schema)
        file = io.BytesIO()
        pq.write_table(table, file, compression="zstd", use_dictionary=self.repeating)
        return file.getvalue()

    @classmethod
    def read(cls, data: bytes, *, shuffled: bool) -> Iterator[Self]:
        """Read a file in bounded batches.

        Raises:
            CorruptDatasetError: it is damaged, or holds other columns.
        """
        schema = cls.schema(shuffled=shuffled)
        names = [field.name for field in fields(cls)]
        try:
            file = pq.ParquetFile(
                pa.BufferReader(data),
                thrift_string_size_limit=_MAX_THRIFT,
                thrift_container_size_limit=_MAX_THRIFT,
            )
            if file.schema_arrow != schema:
                raise CorruptDatasetError(f"expected the columns {', '.join(schema.names)}")
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
                if any(column.null_count for column in batch.columns):
                    raise CorruptDatasetError("a column holds nulls")
                columns: list[npt.NDArray[Any]] = [np.asarray(column) for column in batch.columns]
                wide = [
                    each if each.dtype == np.uint64 else each.astype(np.int64) for each in columns
                ]
                yield cls(**dict(zip(names, wide, strict=True)))
        except (pa.ArrowException, OSError) as error:
            raise CorruptDatasetError(f"no list of documents: {one_line(error)}") from error


@dataclass(frozen=True, kw_only=True)
class Duplicates(_Table):
    """Some documents that were left out.

    Attributes:
        groups: the part of each, or its source if the dataset is shuffled.
        rows: its row there.
        tokens: its ids, without its end-of-text id.
        first_groups, first_rows: the same of its first copy.
    """

    groups: Ints
    rows: Ints
    tokens: Ints
    first_groups: Ints
    first_rows: Ints

    kinds = (
        ("{group}", pa.int32()),
        ("row", pa.int64()),
        ("tokens", pa.uint32()),
        ("first_{group}", pa.int32()),
        ("first_row", pa.int64()),
    )
    repeating = True


@dataclass(frozen=True, kw_only=True)
class Digests(_Table):
    """Some texts of a dataset, by hash.

    Attributes:
        high, low: halves of the hash, 128 bits.
        groups: the part of each, or its source if the dataset is shuffled.
        rows: its row there.
    """

    high: Keys
    low: Keys
    groups: Ints
    rows: Ints

    kinds = (
        ("high", pa.uint64()),
        ("low", pa.uint64()),
        ("{group}", pa.int32()),
        ("row", pa.int64()),
    )
    repeating = False
