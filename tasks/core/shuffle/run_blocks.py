"""Blocks of runs, read from storage and compared with their hashes."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

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
    at_once = _READS_AT_ONCE if storage.remote else 1
    with ThreadPoolExecutor(at_once) as threads:
        for first in range(0, len(ranges), at_once):
            some = ranges[first : first + at_once]
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
    view, origin = memoryview(data), int(found.offsets[0])
    for block, count in enumerate(found.counts.tolist()):
        if not count:
            continue
        begin, end = (int(offset) for offset in found.offsets[block : block + 2])
        own = view[begin - origin : end - origin]
        if xxhash.xxh3_64_intdigest(own) != int(found.digests[block]):
            raise CorruptDatasetError(
                f"{storage}/{path_of(found.part, found.run)} is damaged between the bytes {begin} "
                f"and {end}. Remove the folder shuffle of the output and run the same command "
                "again."
            )
        yield count, own
