"""Arrays in memory that is reused once training has released it.

The C library returns large blocks to the system when they are freed. When they are allocated again,
the system clears all their pages, which costs more than filling them.

Each block begins at a page. A block of the C library begins 16 bytes further into a page than the
one before. Some processors (Zen 3 and 4) take ten times as long to copy to an address that lies a
few bytes further into its page than the source. Targets are such a copy: tokens moved by one.
"""

import math
import mmap
import weakref
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_KEPT: Final = 16  # idle blocks of one kind


class Buffers:
    """Arrays in reused memory to which nothing else refers.

    The memory is a block that is no array, so every view of an array, and every tensor that
    `torch.from_numpy` makes of it, keeps that array alive. When the last of them is gone, the array
    dies, and its block is idle until the next one. This works however an interpreter counts
    references.
    """

    def __init__(self) -> None:
        """Start without memory."""
        self._kinds: dict[tuple[tuple[int, ...], type], _Kind] = {}

    def take(self, shape: tuple[int, ...], dtype: type) -> npt.NDArray[Any]:
        """Return an array with undefined content."""
        try:
            kind = self._kinds[shape, dtype]
        except KeyError:
            kind = self._kinds[shape, dtype] = _Kind()
        try:
            block = kind.idle.pop()  # the last one released: a core's cache may still hold it
        except IndexError:
            block = _MemoryBlock(kind, math.prod(shape) * np.dtype(dtype).itemsize)
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, block.memory)
        block.lent = weakref.ref(array, block.on_death)
        return array

    def __getstate__(self) -> dict[str, object]:
        """Send no memory to another process."""
        return {"_kinds": {}}


class _Kind:
    """The blocks for arrays of one shape and type, with the idle ones apart."""

    __slots__ = ("blocks", "idle")

    def __init__(self) -> None:
        self.idle: list[_MemoryBlock] = []
        self.blocks: set[_MemoryBlock] = set()


class _MemoryBlock:
    """Memory, and a weak reference to the array in it."""

    __slots__ = ("lent", "memory", "on_death")

    def __init__(self, kind: _Kind, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # a forked process has its own
        self.memory = mmap.mmap(-1, max(1, size), flags=flags)
        self.lent: weakref.ref[npt.NDArray[Any]] | None = None
        kind.blocks.add(self)

        def come_back(_: object, most: int = _KEPT) -> None:  # at exit, globals may be None
            if len(kind.idle) < most:
                kind.idle.append(self)
            else:
                kind.blocks.discard(self)

        self.on_death = come_back
