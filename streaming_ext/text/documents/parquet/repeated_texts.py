"""Row groups in which few texts stand for many: read as they are stored, each text once."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.text.documents.columns import column_at, compared_at
from streaming_ext.text.documents.parquet.chosen_columns import ChosenColumns
from streaming_ext.text.documents.text_array import text_buffers

ReadColumns = tuple[list[pa.LargeStringArray], list[pa.Array]]  # texts, and what is compared


def read_repeated(
    path: Path,
    columns: ChosenColumns,
    *,
    groups: list[int],
    rows: int,
    batch_bytes: int,
    skip: int,
) -> Iterator[ReadColumns]:
    """The columns as the file stores them, each repeated text once, and spelled out bit by bit.

    A page of some bytes may stand for a million copies of a large text. Slower where texts differ.

    Args:
        path: the file.
        columns: to read.
        groups: row groups to read.
        rows: to read at once.
        batch_bytes: of text to spell out at once.
        skip: rows to leave out at the beginning.
    """
    with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False,
                        read_dictionary=columns.text_names) as file:  # fmt: skip
        for batch in file.iter_batches(rows, groups, columns.names, use_threads=False):
            skipped = min(skip, len(batch))
            skip -= skipped
            stored = [column_at(batch, column).slice(skipped) for column in columns.texts]
            compared = [column.slice(skipped) for column in compared_at(batch, columns.compared)]
            # ends: (rows + 1,), of all columns
            ends = np.concatenate([[0], np.cumsum(sum(map(_sizes, stored)))])
            start, length = 0, len(batch) - skipped
            while start < length:
                beyond = np.searchsorted(ends, ends[start] + batch_bytes, side="right")
                end = max(start + 1, int(beyond) - 1)
                yield (
                    [c.slice(start, end - start).cast(pa.large_string()) for c in stored],
                    [c.slice(start, end - start) for c in compared],
                )
                start = end


def _sizes(stored: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """Bytes of each text, 0 where it is null."""
    words = np.diff(text_buffers(stored.dictionary.cast(pa.large_string()))[1])
    if not len(words):
        return np.zeros(len(stored), np.int64)
    sizes = words[np.asarray(stored.indices.fill_null(0))]
    return np.where(np.asarray(stored.is_valid()), sizes, 0)
