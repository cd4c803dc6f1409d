"""`digests/PPPPP/NNNNN.parquet`: hashes of the texts that a dataset without copies holds.

An extension compares its texts with them. Those of one generation lie in the folder that has the
number of its first part; each file is of an equal range of hashes, in their order:

    high, low       the hash, 128 bits
    part, row       where the document stood; with a shuffle source and row, as in `documents/`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Ints
from streaming_ext.dataset.deduplicated.table import read_columns, table_bytes
from streaming_ext.dataset.layout import DIGESTS_FOLDER

Keys = npt.NDArray[np.uint64]

_BATCH_ROWS: Final = 2**18
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
