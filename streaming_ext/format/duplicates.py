"""`duplicates/NNNNN.parquet`: the documents that were left out of a part as copies of others.

Documents are named as in the list of documents beside it: by part and row, or, where the dataset is
shuffled, by source and row. The first copy is the one that stays.

Tables of numbers beside a dataset, as Parquet: written whole, read in bounded batches.

`digests/PPPPP/NNNNN.parquet`: hashes of the texts that a dataset without copies holds.

An extension compares its texts with them. Those of one generation lie in the folder that has the
number of its first part; each file is of an equal range of hashes, in their order:

    high, low       the hash, 128 bits
    part, row       where the document stood; with a shuffle source and row, as in `documents/`
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import CorruptDatasetError, one_line
from streaming_ext.format.layout import DIGESTS_FOLDER, DUPLICATES_FOLDER

Comparison = Literal["exact", "normalized"]

_BATCH_ROWS = 2**16
_BYTES_A_ROW: Final = 40


def duplicates_path(part: int) -> str:
    """The list of the documents that were left out of a part as copies."""
    return f"{DUPLICATES_FOLDER}/{part:05}.parquet"


def duplicates_limit(num_duplicates: int) -> int:
    """What a list of so many takes at most, in bytes."""
    return 2**20 + 2 * _BYTES_A_ROW * min(num_duplicates, 2**27)


def duplicates_schema(*, shuffled: bool) -> pa.Schema:
    """Columns of the list: what was left out, its tokens, and its first copy."""
    what = ("source", pa.int32()) if shuffled else ("part", pa.int32())
    return pa.schema(
        [
            what,
            ("row", pa.int64()),
            ("tokens", pa.uint32()),
            (f"first_{what[0]}", what[1]),
            ("first_row", pa.int64()),
        ]
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Duplicates:
    """Some documents that were left out; all arrays: (documents,).

    Attributes:
        groups: the part of each, or its source where the dataset is shuffled.
        rows: its row there.
        tokens: its ids, its end-of-text id left out.
        first_groups, first_rows: the same of its first copy.
    """

    groups: Ints
    rows: Ints
    tokens: Ints
    first_groups: Ints
    first_rows: Ints

    @classmethod
    def joined(cls, pieces: "list[Self]") -> Self:
        """All of them as one."""
        none = np.empty(0, np.int64)
        return cls(
            **{
                name: np.concatenate([none, *(getattr(piece, name) for piece in pieces)])
                for name in cls.__slots__
            }
        )


def table_of(duplicates: Duplicates, *, shuffled: bool) -> bytes:
    """The list as a file."""
    columns = (
        duplicates.groups,
        duplicates.rows,
        duplicates.tokens,
        duplicates.first_groups,
        duplicates.first_rows,
    )
    return table_bytes(columns, duplicates_schema(shuffled=shuffled))


def read_duplicates(data: bytes, *, shuffled: bool) -> Iterator[Duplicates]:
    """Read a list in bounded batches.

    Raises:
        CorruptDatasetError: it is damaged, or holds what no such list holds.
    """
    schema = duplicates_schema(shuffled=shuffled)
    for columns in read_columns(data, schema, batch_rows=_BATCH_ROWS, what="list of duplicates"):
        own = [column.astype(np.int64) for column in columns]
        yield Duplicates(
            groups=own[0], rows=own[1], tokens=own[2], first_groups=own[3], first_rows=own[4]
        )


_MAX_THRIFT: Final = 2**20


def table_bytes(
    columns: Sequence[npt.NDArray[Any]], schema: pa.Schema, *, repeating: bool = True
) -> bytes:
    """A file of some columns: (rows,) each.

    Args:
        columns: in the order of the schema.
        schema: what they are stored as.
        repeating: whether values come again, so that a dictionary of them is worth its place.
    """
    arrays = [
        pa.array(column).cast(kind) for column, kind in zip(columns, schema.types, strict=True)
    ]
    file = io.BytesIO()
    table = pa.table(arrays, schema=schema)
    pq.write_table(table, file, compression="zstd", use_dictionary=repeating)
    return file.getvalue()


def read_columns(
    data: bytes, schema: pa.Schema, *, batch_rows: int, what: str
) -> Iterator[list[npt.NDArray[Any]]]:
    """The columns of a file, in batches: (rows,) each.

    Args:
        data: the file.
        schema: of its columns, to the letter.
        batch_rows: rows of a batch, at most.
        what: the file is, for messages.

    Raises:
        CorruptDatasetError: it is damaged, or holds what no such file holds.
    """
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data),
            thrift_string_size_limit=_MAX_THRIFT,
            thrift_container_size_limit=_MAX_THRIFT,
        )
        if file.schema_arrow != schema:
            raise CorruptDatasetError(f"expected the columns {', '.join(schema.names)}")
        for batch in file.iter_batches(batch_size=batch_rows, use_threads=False):
            if any(column.null_count for column in batch.columns):
                raise CorruptDatasetError("a column holds nulls")
            yield [np.asarray(column) for column in batch.columns]
    except (pa.ArrowException, OSError) as error:
        raise CorruptDatasetError(f"no {what}: {one_line(error)}") from error


Keys = npt.NDArray[np.uint64]

BYTES_A_ROW: Final = 28  # before compression, which hashes hardly take


def kept_digests_path(first_part: int, number: int) -> str:
    """The file of a range of hashes, of the generation whose first part that is."""
    return f"{DIGESTS_FOLDER}/{first_part:05}/{number:05}.parquet"


def digests_limit(documents: int) -> int:
    """What a file of so many takes at most, in bytes."""
    return 2**20 + 2 * BYTES_A_ROW * documents


@dataclass(frozen=True, kw_only=True, slots=True)
class Digests:
    """Some texts of a dataset, by hash; all arrays: (documents,).

    Attributes:
        high, low: halves of the hash.
        groups: the part of each, or its source where the dataset is shuffled.
        rows: its row there.
    """

    high: Keys
    low: Keys
    groups: Ints
    rows: Ints

    @classmethod
    def joined(cls, pieces: Sequence["Digests"]) -> Self:
        """All of several."""
        none, nothing = np.empty(0, np.uint64), np.empty(0, np.int64)
        return cls(
            high=np.concatenate([none, *(piece.high for piece in pieces)]),
            low=np.concatenate([none, *(piece.low for piece in pieces)]),
            groups=np.concatenate([nothing, *(piece.groups for piece in pieces)]),
            rows=np.concatenate([nothing, *(piece.rows for piece in pieces)]),
        )

    def chosen(self, which: npt.NDArray[np.bool_]) -> "Digests":
        """Some of them: `which` is (documents,)."""
        return Digests(
            high=self.high[which],
            low=self.low[which],
            groups=self.groups[which],
            rows=self.rows[which],
        )


def digests_schema(*, shuffled: bool) -> pa.Schema:
    """Columns of such a file."""
    return pa.schema(
        [
            ("high", pa.uint64()),
            ("low", pa.uint64()),
            ("source" if shuffled else "part", pa.int32()),
            ("row", pa.int64()),
        ]
    )


def digests_bytes(digests: Digests, *, shuffled: bool) -> bytes:
    """A file of them, which stand in the order of their hashes."""
    columns = (digests.high, digests.low, digests.groups, digests.rows)
    return table_bytes(columns, digests_schema(shuffled=shuffled), repeating=False)


def read_digests(data: bytes, *, shuffled: bool) -> Iterator[Digests]:
    """Read a file in bounded batches.

    Raises:
        CorruptDatasetError: it is damaged, or holds what no such file holds.
    """
    schema = digests_schema(shuffled=shuffled)
    for high, low, groups, rows in read_columns(
        data, schema, batch_rows=_BATCH_ROWS, what="list of hashes"
    ):
        yield Digests(high=high, low=low, groups=groups.astype(np.int64), rows=rows)
