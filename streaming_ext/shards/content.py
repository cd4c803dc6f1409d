"""The bytes of a whole file: mapped, or read into memory where that is asked for."""

import mmap
import os
from typing import Final

from streaming_ext.errors import StorageError

NO_MAPS: Final = (
    "Look at `ulimit -v` and at vm.max_map_count, or pass reading='files': shards are then read "
    "by position, without maps."
)


def content_of(descriptor: int, size: int, *, maps: bool) -> mmap.mmap | bytearray:
    """The bytes of an open file.

    Raises:
        StorageError: the system refuses to map it or to read it, or it ends too early.
    """
    if maps:
        try:
            return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise StorageError(
                f"The system refused to map {size} bytes: {error}. {NO_MAPS}"
            ) from error
    data, done = bytearray(size), 0
    while done < size:  # a read gives two gigabytes at the most
        try:
            count = os.preadv(descriptor, [memoryview(data)[done:]], done)
        except OSError as error:
            raise StorageError(f"A file of {size} bytes cannot be read: {error}.") from error
        if not count:
            raise StorageError(f"A file of {size} bytes ended at {done}: it was cut short.")
        done += count
    return data
