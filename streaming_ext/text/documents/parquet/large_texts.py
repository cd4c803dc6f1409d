"""Reading row groups so that what a reader keeps of a large text is gone while that is worked on.

A column's reader keeps the page that it is at, packed and unpacked, and the dictionary of its row
group: of a text that fills a page of its own three times its size. So behind such a text the reader
is dropped, and another one begins, which goes over the earlier rows of the row group again.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.text.documents.columns import Path as ColumnPath
from streaming_ext.text.documents.columns import texts_at
from streaming_ext.text.documents.text_array import text_buffers

_LARGE_TEXT_BYTES = 2**26
_MOST_AGAIN = 8  # bytes that are gone over again for a byte of what was just read


def batches_of(
    file: pq.ParquetFile, groups: Sequence[int], *, rows: int, names: list[str],
    texts: Sequence[ColumnPath],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The rows of some row groups in order; who takes a batch must let go of the one before.

    Args:
        file: to read.
        groups: that follow each other.
        rows: a batch, at most.
        names: of the columns to read.
        texts: those of them that are texts.
    """
    # ends: row group -> rows before its end, of those that are read: groups of 5, none and 3 rows
    # end at 5, 5 and 8; row 5, the sixth, is in the third of them
    ends = list(accumulate(file.metadata.row_group(group).num_rows for group in groups))
    done = given = 0  # rows handed out, and bytes of those that are of the group in hand
    in_hand = 0
    while (number := bisect_right(ends, done)) < len(groups):
        skip = done - (ends[number - 1] if number else 0)
        reader = _without_first(
            file.iter_batches(rows, groups[number:], names, use_threads=False), skip
        )
        for batch in reader:
            given = 0 if bisect_right(ends, done) != in_hand else given
            done += len(batch)
            in_hand = bisect_right(ends, done - 1)
            given += batch.nbytes
            if _longest(batch, texts) >= _LARGE_TEXT_BYTES and given <= _MOST_AGAIN * batch.nbytes:
                break
            yield batch
            del batch
        else:
            return
        reader.close()
        del reader
        pa.default_memory_pool().release_unused()
        yield batch
        del batch
        pa.default_memory_pool().release_unused()


def _without_first(
    batches: Iterator[pa.RecordBatch], skip: int
) -> Generator[pa.RecordBatch, None, None]:
    for batch in batches:
        skipped = min(skip, len(batch))
        skip -= skipped
        if skipped < len(batch):
            yield batch.slice(skipped)
        del batch


def _longest(batch: pa.RecordBatch, texts: Sequence[ColumnPath]) -> int:
    """The bytes of its longest text."""
    if batch.nbytes < _LARGE_TEXT_BYTES:
        return 0
    sizes = [np.diff(text_buffers(column)[1]) for column in texts_at(batch, texts)]
    return max((int(column.max(initial=0)) for column in sizes), default=0)
