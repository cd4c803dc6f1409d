"""Many files read by position, for systems that map too few files or none.

It answers as `Arena` does, in the same addresses, with a read for each run of neighbouring rows in
place of a copy out of mapped memory. Open files are what bounds it, as maps bound the other.
"""

import errno
import itertools
import mmap
import os
import resource
import weakref
from typing import Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from streaming_ext.errors import CorruptDatasetError, StorageError

_LEAST_FILES: Final = 32


_UNLIMITED: Final = 1 << 17
_OUT_OF_FILES: Final = {errno.EMFILE, errno.ENFILE}
_taken: dict[int, int] = {}  # files that each reader of this process may have open, by a number
_numbers = itertools.count()


def open_files_for(reader: object, wanted: int) -> int:
    """How many files a reader may have open, of `wanted`, as long as it lives.

    All readers of a process together take three quarters of the files that it may have, each two
    thirds of what is left, and no reader fewer than 32:

        limit 1024: the first takes up to 512, the second up to 170, the third up to 57
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    budget = _UNLIMITED if soft == resource.RLIM_INFINITY else 3 * soft // 4
    left = budget - sum(_taken.copy().values())
    taken = min(wanted, max(_LEAST_FILES, left * 2 // 3))
    number = next(_numbers)
    _taken[number] = taken
    weakref.finalize(reader, _taken.pop, number, None)
    return taken


def no_more_files(error: OSError) -> StorageError | None:
    """What to raise where a file cannot be opened because too many are; None for other errors."""
    if error.errno not in _OUT_OF_FILES:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return StorageError(
        f"No shard can be opened any more: {error.strerror} (this process may have {soft}). Raise "
        "the limit (ulimit -n), keep fewer datasets open, or read without reading='files'."
    )


class FileArena:
    """Files with a range of addresses each; see `Arena` for the words."""

    def __init__(self, sizes: Ints) -> None:
        """Lay out addresses for each of `sizes`, in bytes: (files,)."""
        page = mmap.PAGESIZE
        slots = -(-sizes // page) * page
        self._sizes = sizes
        self.ends: Ints = np.cumsum(slots)
        self.offsets: Ints = self.ends - slots
        self._files: dict[int, int] = {}
        weakref.finalize(self, _close_all, self._files)  # also in a fork, which has its own

    def place(self, slot: int, descriptor: int, size: int) -> npt.NDArray[np.uint8]:
        """Keep an open file for its slot; returns its bytes, read into memory of their own.

        Raises:
            StorageError: it cannot be read, or this process has too many files open.
        """
        data: npt.NDArray[np.uint8] = np.empty(size, np.uint8)
        self._read(descriptor, data.data, 0, size)
        try:
            self._files[slot] = os.dup(descriptor)
        except OSError as error:
            raise no_more_files(error) or error from error
        return data

    def clear(self, slot: int) -> None:
        """Close what is open for a slot."""
        os.close(self._files.pop(slot))

    def rows(self, addresses: Ints, width: int) -> npt.NDArray[np.uint8]:
        """Read `width` bytes from each address; neighbours are read at once: (rows, width).

        Raises:
            CorruptDatasetError: a file was cut short since it was verified.
            StorageError: it cannot be read.
        """
        count = len(addresses)
        rows: npt.NDArray[np.uint8] = np.empty((count, width), np.uint8)
        if not count:
            return rows
        slots = np.searchsorted(self.offsets, addresses, side="right") - 1
        breaks = (addresses[1:] - addresses[:-1] != width) | (slots[1:] != slots[:-1])
        # firsts: (runs + 1,), the first row of each run of neighbours, then their number
        firsts = np.concatenate([[0], np.flatnonzero(breaks) + 1, [count]])
        begins = firsts[:-1]
        whole = rows.reshape(-1).data
        files, preadv = self._files, os.preadv
        try:
            for slot, position, first, behind, size in zip(
                slots[begins].tolist(),
                (addresses - self.offsets[slots])[begins].tolist(),
                (begins * width).tolist(),
                (firsts[1:] * width).tolist(),
                self._sizes[slots[begins]].tolist(),
                strict=True,
            ):
                view = whole[first:behind]
                if preadv(files[slot], [view], position) != behind - first:
                    self._read(files[slot], view, position, size)
        except OSError as error:  # caught once for all of them: a batch is many reads
            raise _unreadable(error) from error
        return rows

    def _read(self, file: int, view: memoryview, position: int, size: int) -> None:
        """Read what there is of a file into memory, and zeros behind its end.

        Raises:
            CorruptDatasetError: it was cut short since it was verified.
            StorageError: it cannot be read.
        """
        end = max(0, min(len(view), size - position))
        done = 0
        while done < end:
            try:
                count = os.preadv(file, [view[done:end]], position + done)
            except OSError as error:
                raise _unreadable(error) from error
            if not count:
                raise CorruptDatasetError(
                    f"A shard ends at byte {position + done}, it had {size} when it was verified: "
                    "something cut it short. Put the right file back, or empty the cache."
                )
            done += count
        view[end:] = bytes(len(view) - end)


def _unreadable(error: OSError) -> StorageError:
    return StorageError(f"A shard cannot be read: {error}.")


def _close_all(files: dict[int, int]) -> None:
    for file in files.values():
        os.close(file)
