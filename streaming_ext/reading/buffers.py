"""Arrays in memory that is reused once training has released it.

The C library returns large blocks to the system when they are freed, and the system clears every
page of them when they are allocated again, which costs more than filling them.

Each block begins at a page. Blocks of the C library stand 16 bytes further into a page than the one
before, and some processors (Zen 3 and 4) take ten times as long to copy to a place that is a few
bytes further into its page than the source: as targets are, which are tokens moved by one.
"""

import math
import mmap
import weakref
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_KEPT: Final = 16  # blocks of a kind that wait for their next use


class Buffers:
    """Gives out arrays in memory that has no other reference.

    The memory is a block that is no array, so every view of an array, and every tensor made of it
    with `torch.from_numpy`, keeps that very array alive. When the last of them is gone, the array
    dies, and its block waits for the next one. This depends on no interpreter's way of counting
    references.
    """

    def __init__(self) -> None:
        """Start with nothing."""
        self._kinds: dict[tuple[tuple[int, ...], type], _Kind] = {}

    def take(self, shape: tuple[int, ...], dtype: type) -> npt.NDArray[Any]:
        """An array of any content."""
        try:
            kind = self._kinds[shape, dtype]
        except KeyError:
            kind = self._kinds[shape, dtype] = _Kind()
        try:
            block = kind.idle.pop()  # the last that came back: a core's cache may still hold it
        except IndexError:
            block = _MemoryBlock(kind, math.prod(shape) * np.dtype(dtype).itemsize)
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, block.memory)
        block.lent = weakref.ref(array, block.on_death)
        return array

    def __getstate__(self) -> dict[str, object]:
        """Nothing goes to another process."""
        return {"_kinds": {}}


class _Kind:
    """The blocks for arrays of one shape and type: idle ones, and all."""

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

        def come_back(_: object) -> None:
            if len(kind.idle) < _KEPT:
                kind.idle.append(self)
            else:
                kind.blocks.discard(self)

        self.on_death = come_back
