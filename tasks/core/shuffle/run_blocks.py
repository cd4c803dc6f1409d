"""Blocks of runs, read from storage into memory that is there, and compared with their hashes."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, starmap

import numpy as np
import numpy.typing as npt
import xxhash

from streaming_ext.errors import CorruptDatasetError, StorageError
from tasks.core.shuffle.run_index import Range
from tasks.core.storage import Storage

PathOf = Callable[[int, int], str]  # of a part and the number of a run there
Memory = npt.NDArray[np.uint8]
_READS_AT_ONCE = 16  # of object storage


def size_of(ranges: Sequence[Range]) -> int:
    """Bytes of all of some ranges."""
    return sum(int(found.offsets[-1] - found.offsets[0]) for found in ranges)


def read_ranges(
    storage: Storage, ranges: Sequence[Range], path_of: PathOf, memory: Memory
) -> list[memoryview]:
    """Read ranges one behind another, of object storage some at a time.

    Args:
        storage: that holds the runs.
        ranges: to read.
        path_of: says where a run lies.
        memory: takes them: `size_of` them or more.

    Returns:
        The bytes of each, in the memory.

    Raises:
        StorageError: one cannot be read.
        CorruptDatasetError: a block is damaged.
    """
    rooms, held = [], 0
    for found in ranges:
        size = size_of([found])
        rooms.append(memory[held : held + size].data)
        held += size

    def read(found: Range, room: memoryview) -> None:
        _read(storage, path_of(found.part, found.run), found, room)

    if storage.remote:
        with ThreadPoolExecutor(_READS_AT_ONCE) as threads:
            for _ in threads.map(read, ranges, rooms):
                pass
    else:
        for _ in starmap(read, zip(ranges, rooms, strict=True)):
            pass
    return rooms


def read_in_turn(
    storage: Storage, ranges: Sequence[Range], path_of: PathOf
) -> Iterator[tuple[Range, memoryview]]:
    """The bytes of one range after another, each there until the next is asked for.

    Raises:
        StorageError: one cannot be read.
        CorruptDatasetError: a block is damaged.
    """
    count = _READS_AT_ONCE if storage.remote else 1
    some = [ranges[first : first + count] for first in range(0, len(ranges), count)]
    memory = np.empty(max(map(size_of, some), default=0), np.uint8)
    for at_once in some:
        yield from zip(at_once, read_ranges(storage, at_once, path_of, memory), strict=True)


def blocks_of(found: Range, data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The documents and the bytes of each block of a range that holds any."""
    edges = (found.offsets - found.offsets[0]).tolist()
    for count, (begin, end) in zip(found.counts.tolist(), pairwise(edges), strict=True):
        if count:
            yield count, data[begin:end]


def _read(storage: Storage, path: str, found: Range, room: memoryview) -> None:
    digests = _Digests(found)
    try:
        storage.read_range_into(path, int(found.offsets[0]), room, digests.see)
    except FileNotFoundError as error:
        raise StorageError(
            f"{storage}/{path} is gone: something removed it during the run. Run the same command "
            "again."
        ) from error
    damaged = (digests.found != found.digests) & (found.counts > 0)
    if damaged.any():
        first = int(np.argmax(damaged))
        raise CorruptDatasetError(
            f"{storage}/{path} is damaged between the bytes {found.offsets[first]} and "
            f"{found.offsets[first + 1]}. Remove the folder shuffle of the output and run the same "
            "command again."
        )


class _Digests:
    """Hashes of the blocks of a range, made while a core has their bytes in its cache.

    Attributes:
        found: of each block that was seen to its end, (blocks,).
    """

    def __init__(self, of: Range) -> None:
        self.found = np.zeros(len(of.counts), np.uint64)
        self._sizes = np.diff(of.offsets).tolist()
        self._block = 0
        self._begun: xxhash.xxh3_64 | None = None  # a block that came in part
        self._seen = 0  # bytes of it

    def see(self, data: memoryview) -> None:
        """Go on with the next bytes."""
        at = 0
        while at < len(data):
            size = self._sizes[self._block] - self._seen
            piece = data[at : at + size]
            at += size
            if self._begun is None and len(piece) == size:
                self._end(xxhash.xxh3_64_intdigest(piece))
                continue
            if self._begun is None:
                self._begun = xxhash.xxh3_64()
            self._begun.update(piece)
            self._seen += len(piece)
            if len(piece) == size:
                self._end(self._begun.intdigest())

    def _end(self, digest: int) -> None:
        self.found[self._block] = digest
        self._block += 1
        self._begun, self._seen = None, 0
