"""Many files mapped into one range of addresses, so that one gather reads rows from all of them.

A range as large as all files is reserved without memory behind it; each file is then mapped into
its own slot. No file stays open, so the limit on open files does not apply.
"""

import ctypes
import mmap
import os
import weakref
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints, windows
from streaming_ext.errors import StorageError
from streaming_ext.shards.content import NO_MAPS

_MAP_FIXED: Final = 0x10  # the same on Linux and macOS; the `mmap` module does not name it
_RESERVED: Final = mmap.MAP_PRIVATE | mmap.MAP_ANON | getattr(mmap, "MAP_NORESERVE", 0)
_FAILED: Final = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _map(address: int | None, size: int, protection: int, flags: int, descriptor: int) -> int:
    mapped = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if mapped is None or mapped == _FAILED:
        error = ctypes.get_errno()
        raise StorageError(
            f"The system refused to map {size} bytes: {os.strerror(error)}. {NO_MAPS}"
        )
    return int(mapped)


class Arena:
    """A reserved range of addresses with one slot a file.

    A slot that holds no file has no memory: reading it ends the process. Callers map first. Behind
    a file there are zeros, to the end of its last page.

    Attributes:
        offsets: first byte of each slot: (files,).
        ends: the byte behind its last page: (files,).
    """

    def __init__(self, sizes: Ints) -> None:
        """Reserve a slot for each of `sizes`, in bytes: shape (files,)."""
        page = mmap.PAGESIZE
        self._slot_bytes = -(-sizes // page) * page
        self.ends: Ints = np.cumsum(self._slot_bytes)
        self.offsets: Ints = self.ends - self._slot_bytes
        self._bytes = int(self.ends[-1]) if len(self.ends) else page
        self._address = _map(None, self._bytes, 0, _RESERVED, -1)
        # Not at the end of the process: threads that read ahead may still be in the middle.
        weakref.finalize(self, _libc.munmap, self._address, self._bytes).atexit = False
        self._windows: dict[int, npt.NDArray[Any]] = {}

    def place(self, slot: int, descriptor: int, size: int) -> npt.NDArray[np.uint8]:
        """Map an open file into its slot; returns its bytes, valid until the slot is cleared."""
        address = self._address + int(self.offsets[slot])
        flags = mmap.MAP_SHARED | _MAP_FIXED
        _map(address, size, mmap.PROT_READ, flags, descriptor)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def hold(self, slot: int, values: npt.NDArray[Any]) -> None:
        """Copy an array into memory of this process in a slot."""
        address = self._address + int(self.offsets[slot])
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | _MAP_FIXED
        _map(address, values.nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1)
        ctypes.memmove(address, np.ascontiguousarray(values).ctypes.data, values.nbytes)

    def all(self, dtype: type) -> npt.NDArray[Any]:
        """The whole range as one array; only what lies in full slots may be touched."""
        count = self._bytes // np.dtype(dtype).itemsize
        buffer: Any = (ctypes.c_uint8 * self._bytes).from_address(self._address)
        return np.ndarray((count,), dtype, buffer)

    def clear(self, slot: int) -> None:
        """Give back what is mapped into a slot."""
        address = self._address + int(self.offsets[slot])
        _map(address, int(self._slot_bytes[slot]), 0, _RESERVED | _MAP_FIXED, -1)

    def rows(self, addresses: Ints, width: int) -> npt.NDArray[np.uint8]:
        """Copy `width` bytes from each address, counted from the arena's start.

        Args:
            addresses: shape (rows,); the caller answers for each row lying in a mapped file.
            width: bytes a row.

        Returns:
            shape (rows, width).
        """
        if width not in self._windows:
            # One void element starts at every byte: taking elements copies whole rows.
            buffer: Any = (ctypes.c_uint8 * self._bytes).from_address(self._address)
            self._windows[width] = windows(np.frombuffer(buffer, np.uint8), width)
        taken = self._windows[width][addresses]
        return taken.view(np.uint8).reshape(len(addresses), width)
