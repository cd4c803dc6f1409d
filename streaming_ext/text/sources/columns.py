"""Fetching only the text column of a remote Parquet file, where that saves enough.

The bytes of the column's chunks and of the footer are put where they belong into a file of the
full length; the rest stays a hole that no reader of that column looks into.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

# Below this a request costs more than the bytes that it saves.
SMALLEST_FILE = 32 * 2**20
# Measured (benchmarks/remote/README.md): a byte costs in ranges about what it costs in
# one stream, so any real saving counts. Where the listing tells a hash of the whole file, that
# check is given up only for a large saving.
WORTH_IT = 0.8
WORTH_A_HASH = 0.3
_MERGE_BYTES = 2**20
_PIECE_BYTES = 8 * 2**20
_AT_ONCE = 4


class Ranges(Protocol):
    """What reads a remote file."""

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""
        ...


def column_ranges(footer: bytes, column: str, size: int) -> list[tuple[int, int]] | None:
    """The ranges [start, end) of a file that reading one column takes, merged and in order.

    None where the footer is damaged or has no such column: whoever reads the file will say so.
    """
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowException, OSError):
        return None
    ranges = [(0, 4), (size - len(footer), size)]
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        chunks = [row_group.column(index) for index in range(row_group.num_columns)]
        wanted = [chunk for chunk in chunks if chunk.path_in_schema == column]
        if len(wanted) != 1:
            return None
        start = wanted[0].data_page_offset
        if wanted[0].has_dictionary_page:
            start = min(start, wanted[0].dictionary_page_offset)
        ranges.append((start, start + wanted[0].total_compressed_size))
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if not 0 <= start <= end <= size:
            return None
        if merged and start - merged[-1][1] <= _MERGE_BYTES:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def worth_it(ranges: list[tuple[int, int]], size: int, *, hashed: bool) -> bool:
    """Whether the ranges are so much less than the file."""
    share = sum(end - start for start, end in ranges) / size
    return share < (WORTH_A_HASH if hashed else WORTH_IT)


def fetch_ranges(reader: Ranges, ranges: list[tuple[int, int]], size: int, partial: Path) -> int:
    """Fetch the ranges into a file with holes; returns how many bytes came."""

    def pieces() -> Iterator[tuple[int, int]]:
        for start, end in ranges:
            for position in range(start, end, _PIECE_BYTES):
                yield position, min(position + _PIECE_BYTES, end)

    fetched = 0
    with partial.open("wb") as file, ThreadPoolExecutor(_AT_ONCE) as threads:
        file.truncate(size)
        waiting = list(pieces())
        # So many at once that memory stays small, whatever the file's size.
        for first in range(0, len(waiting), _AT_ONCE):
            batch = waiting[first : first + _AT_ONCE]
            for (start, _), data in zip(
                batch, threads.map(lambda piece: reader.read(*piece), batch), strict=True
            ):
                file.seek(start)
                file.write(data)
                fetched += len(data)
    return fetched
