"""`duplicates/NNNNN.parquet`: the documents that were left out of a part as copies of others.

Documents are named as in the list of documents beside it: by part and row, or, where the dataset is
shuffled, by source and row. The first copy is the one that stays.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np
import pyarrow as pa

from streaming_ext.base.arrays import Ints
from streaming_ext.dataset.deduplicated.table import read_columns, table_bytes
from streaming_ext.dataset.layout import DUPLICATES_FOLDER

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
