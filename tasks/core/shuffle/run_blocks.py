"""Blocks of runs, read from storage and compared with their hashes."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import numpy as np
import xxhash

from streaming_ext.errors import CorruptDatasetError, StorageError
from tasks.core.shuffle.run_index import Range
from tasks.core.storage import Storage

PathOf = Callable[[int, int], str]  # of a part and the number of a run there
_READS_AT_ONCE = 16  # of object storage


def bytes_of_ranges(
    storage: Storage, ranges: Sequence[Range], path_of: PathOf
) -> Iterator[tuple[Range, bytes]]:
    """The bytes of each range; of object storage some at a time.

    Raises:
        StorageError: one cannot be read.
    """
    if not storage.remote:
        yield from ((found, _bytes_of(storage, path_of, found)) for found in ranges)
        return
    with ThreadPoolExecutor(_READS_AT_ONCE) as threads:
        for first in range(0, len(ranges), _READS_AT_ONCE):
            some = ranges[first : first + _READS_AT_ONCE]
            yield from zip(
                some, threads.map(partial(_bytes_of, storage, path_of), some), strict=True
            )


def _bytes_of(storage: Storage, path_of: PathOf, found: Range) -> bytes:
    path = path_of(found.part, found.run)
    try:
        return storage.read_range(path, int(found.offsets[0]), int(found.offsets[-1]))
    except FileNotFoundError as error:
        raise StorageError(
            f"{storage}/{path} is gone: something removed it during the run. Run the same command "
            "again."
        ) from error


def sound_blocks(
    storage: Storage, found: Range, data: bytes, path_of: PathOf
) -> Iterator[tuple[int, memoryview]]:
    """The documents and the bytes of each block of a range that holds any.

    Raises:
        CorruptDatasetError: a block is damaged.
    """
    require_sound(storage, found, data, path_of)
    view = memoryview(data)
    edges = (found.offsets - found.offsets[0]).tolist()
    for count, (begin, end) in zip(found.counts.tolist(), pairwise(edges), strict=True):
        if count:
            yield count, view[begin:end]


def require_sound(storage: Storage, found: Range, data: bytes, path_of: PathOf) -> None:
    """Compare each block of a range with its hash.

    Raises:
        CorruptDatasetError: one is damaged.
    """
    view, digest = memoryview(data), xxhash.xxh3_64_intdigest
    filled = found.counts > 0
    begins, ends = found.offsets[:-1][filled], found.offsets[1:][filled]
    origin = int(found.offsets[0])
    digests = (
        digest(view[begin:end])
        for begin, end in zip((begins - origin).tolist(), (ends - origin).tolist(), strict=True)
    )
    damaged = np.fromiter(digests, np.uint64, len(begins)) != found.digests[filled]
    if damaged.any():
        first = int(np.argmax(damaged))
        raise CorruptDatasetError(
            f"{storage}/{path_of(found.part, found.run)} is damaged between the bytes "
            f"{begins[first]} and {ends[first]}. Remove the folder shuffle of the output and run "
            "the same command again."
        )
