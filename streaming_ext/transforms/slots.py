"""Samples on their way from a worker: their tensors in memory that both processes have.

What torch shares by itself takes a file and a socket for each tensor, and what is sent through a
pipe is copied four times. Each slot has a mark: a worker takes one that is free, and the receiver
frees it when it has copied what is in it. What finds no room is sent through the pipe.
"""

import io
import math
import mmap
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

SLOT_BYTES: Final = 4 << 20  # of a message; memory that was never written takes no room
_ALIGNMENT: Final = 64
_KINDS: Final = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.float32, torch.float64, torch.bfloat16,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor's values in a slot, from a byte on."""

    start: int
    kind: str
    shape: tuple[int, ...]

    def within(self, room: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """They, as an array."""
        kind = np.dtype(self.kind)
        size = math.prod(self.shape) * kind.itemsize
        return room[self.start : self.start + size].view(kind).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class _Told:
    """What stands for a tensor in a pickled sample."""

    values: _Place | npt.NDArray[Any]
    brain: bool  # they are of bfloat16, which NumPy does not know, told as int16

    @classmethod
    def of(cls, tensor: torch.Tensor, put: Callable[[npt.NDArray[Any]], Any]) -> "_Told":
        """Put the values of a tensor somewhere."""
        brain = tensor.dtype is torch.bfloat16
        return cls(put((tensor.view(torch.int16) if brain else tensor).numpy()), brain)

    def tensor(self, room: npt.NDArray[np.uint8] | None) -> torch.Tensor:
        """The tensor, of memory of its own."""
        values = self.values
        if isinstance(values, _Place):
            assert room is not None  # noqa: S101 - for the type checker
            values = values.within(room).copy()
        found = torch.from_numpy(values)
        return found.view(torch.bfloat16) if self.brain else found


class _Writer(pickle.Pickler):
    """Pickles all but tensors, whatever holds them; others than plain ones by value.

    Torch would send files, whose worker may be gone when they are asked for.
    """

    def __init__(self, file: io.BytesIO, put: Callable[[npt.NDArray[Any]], Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._put = put

    def persistent_id(self, value: Any) -> _Told | None:
        """What stands for it, where it is a plain tensor."""
        if (
            type(value) is torch.Tensor and value.dtype in _KINDS and value.device.type == "cpu"
            and value.layout is torch.strided and not (value.requires_grad or value.is_neg())
        ):  # fmt: skip
            return _Told.of(value, self._put)
        return None


class _Reader(pickle.Unpickler):
    """Reads what `_Writer` wrote, in the process that made the worker."""

    def __init__(self, data: bytes, room: npt.NDArray[np.uint8] | None) -> None:
        super().__init__(io.BytesIO(data))
        self._room = room

    def persistent_load(self, told: _Told) -> torch.Tensor:
        """The tensor that this stands for."""
        return told.tensor(self._room)


@dataclass(frozen=True, slots=True)
class Sent:
    """Samples on their way.

    Attributes:
        slot: that holds tensors of them; None where there is none.
        samples: with places instead of tensors, pickled: what cannot be is an error of the worker,
            where a queue would lose it in silence.
    """

    slot: int | None
    samples: bytes


class SampleSlots:
    """Memory of a loader and its workers; nothing at all where they are not forked."""

    def __init__(self, *, workers: int, each: int, inherited: bool) -> None:
        """Make the memory.

        Args:
            workers: how many write.
            each: slots of a worker.
            inherited: whether workers are forked: only then they have the memory.
        """
        self._each = each if inherited else 0
        count = workers * self._each
        self._marks = mmap.mmap(-1, count) if count else None  # 1: the slot holds a message
        self._memory = mmap.mmap(-1, count * SLOT_BYTES) if count else None

    def write(self, samples: list[Any], *, worker: int) -> Sent:
        """Put a message of a worker into one of its slots."""
        slot = self._free_slot(worker)
        room = self._room(slot)
        used = 0

        def put(values: npt.NDArray[Any]) -> Any:
            nonlocal used
            if room is None or used + values.nbytes > SLOT_BYTES:
                return values
            place = _Place(used, values.dtype.str, values.shape)
            place.within(room)[...] = values
            used += -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT
            return place

        told = io.BytesIO()
        _Writer(told, put).dump(samples)
        if slot is not None and self._marks is not None:
            self._marks[slot] = 1
        return Sent(slot, told.getvalue())

    def _free_slot(self, worker: int) -> int | None:
        own = range(worker * self._each, (worker + 1) * self._each)
        marks = self._marks
        return None if marks is None else next((one for one in own if not marks[one]), None)

    def _room(self, slot: int | None) -> npt.NDArray[np.uint8] | None:
        if slot is None or self._memory is None:
            return None
        return np.frombuffer(self._memory, np.uint8, SLOT_BYTES, slot * SLOT_BYTES)

    def read(self, sent: Sent) -> list[Any]:
        """The samples of a message, of their own memory; a worker may have the slot again."""
        samples: list[Any] = _Reader(sent.samples, self._room(sent.slot)).load()
        if sent.slot is not None and self._marks is not None:
            self._marks[sent.slot] = 0
        return samples
