"""How a batch leaves a worker: through slots of shared memory, and as tensors.

Sending tensors through torch makes a file in shared memory and a socket for each message, which
costs more than making the batch, and a killed job leaves the socket's folder behind. These slots
are made once, have no name, and go with the last process that holds them.
"""

import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

from streaming_ext.base.errors import UsageError
from streaming_ext.order.state import Cursor
from streaming_ext.reading.masks import Boundaries
from streaming_ext.training.batch_reader import Batch, BatchReader, Blocks

_ALIGNMENT = 64
_MARKS = ("boundaries", "step")
_ROW_EXTRAS = 64  # bytes a row for what is no token, and half as many as its tokens take
# Of each array: its name, type, shape, and offset in the slot.
Layout = list[tuple[str, str, tuple[int, ...], int]]
Message = tuple[int, int, Layout, Batch]  # worker, slot, its arrays, arrays without room in it


class Slots:
    """Memory for the messages of each worker, used in turn."""

    def __init__(
        self, *, workers: int, each: int, messages: Sequence[tuple[int, int]], inherited: bool
    ) -> None:
        """Make the memory.

        Args:
            workers: how many write.
            each: slots a worker; more than it ever has messages on the way.
            messages: of each kind of message the most rows, and the bytes of a row's tokens.
            inherited: whether workers are forked; others get the memory handed over.
        """
        wanted = 16 * _ALIGNMENT + max(
            (rows * (row_bytes + row_bytes // 2 + _ROW_EXTRAS) for rows, row_bytes in messages),
            default=0,
        )
        self._bytes = -(-wanted // mmap.PAGESIZE) * mmap.PAGESIZE
        self._each = each
        total = workers * each * self._bytes
        self._memory: mmap.mmap | torch.Tensor = (
            mmap.mmap(-1, total)
            if inherited
            else torch.zeros(total, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        )

    def write(self, batch: Batch, *, worker: int, number: int) -> Message:
        """Put the arrays of a worker's message number `number` into its slot."""
        slot = number % self._each
        memory = self._slot(worker, slot)
        layout: Layout = []
        outside: Batch = {}
        offset = 0
        arrays = {name: values for name, values in batch.items() if name not in _MARKS}
        arrays |= batch["boundaries"].arrays() if "boundaries" in batch else {}
        for name, values in arrays.items():
            if offset + values.nbytes > self._bytes:  # documents of a few tokens
                outside[name] = values
                continue
            target = (
                memory[offset : offset + values.nbytes].view(values.dtype).reshape(values.shape)
            )
            target[...] = values
            layout.append((name, values.dtype.str, values.shape, offset))
            offset += -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT
        return worker, slot, layout, outside

    def read(self, message: Message) -> Batch:
        """The arrays of a message; `tokens` until the worker's next messages fill its slots."""
        worker, slot, layout, outside = message
        memory = self._slot(worker, slot)
        batch = dict(outside)
        for name, dtype, shape, offset in layout:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            values = memory[offset : offset + size].view(dtype).reshape(shape)
            batch[name] = values if name == "tokens" else values.copy()
        if marks := Boundaries.taken_from(batch):
            batch |= {"boundaries": marks, "step": 0}
        return batch

    def _slot(self, worker: int, slot: int) -> npt.NDArray[np.uint8]:
        memory = self._memory
        memory_view = (
            memory.numpy() if isinstance(memory, torch.Tensor) else np.frombuffer(memory, np.uint8)
        )
        begin = (worker * self._each + slot) * self._bytes
        return memory_view[begin : begin + self._bytes]


def to_tensors(batch: Batch, *, pin: bool) -> dict[str, Any]:
    """What training gets: everything as tensors, but the longest segment as a number."""
    result: dict[str, Any] = {
        name: values if name == "max_seqlen" else torch.from_numpy(values)
        for name, values in batch.items()
    }
    if pin:
        return {
            name: value.pin_memory() if isinstance(value, torch.Tensor) else value
            for name, value in result.items()
        }
    return result


def samples_of(batch: Batch) -> list[dict[str, Any]]:
    """A batch as one dictionary of tensors a row."""
    tensors = to_tensors(batch, pin=False)
    return [
        {name: values[row] for name, values in tensors.items()}
        for row in range(len(batch["tokens"]))
    ]


MESSAGE_BYTES = 2 << 20  # ids a worker sends at once: enough to make the sending cheap


class Messages(IterableDataset[Message]):
    """What a worker sends: where in its slots the rows of some steps are."""

    def __init__(
        self, reader: BatchReader, cursor: Cursor, *, num_workers: int, slots: int, inherited: bool
    ) -> None:
        """Make the slots.

        Args:
            reader: of the batches.
            cursor: where the first step begins; the last one is the epoch's.
            num_workers: how many will send.
            slots: messages of each worker that are on the way at most.
            inherited: whether workers are forked.
        """
        self._reader = reader
        self._cursor = cursor
        width = reader.source.dtype.itemsize
        phases = reader.plan.phases(cursor)
        sizes = [phase.together(MESSAGE_BYTES // width) for phase in phases]
        self._steps = [
            (range(phase.first, phase.stop), size)
            for phase, size in zip(phases, sizes, strict=True)
        ]
        self.slots = Slots(
            workers=num_workers,
            each=slots,
            inherited=inherited,
            messages=[
                (size * phase.batch_size, phase.length * reader.token_bytes)
                for phase, size in zip(phases, sizes, strict=True)
            ],
        )

    def __iter__(self) -> Iterator[Message]:
        """The messages of this worker, a block of steps each."""
        info = get_worker_info()
        if info is None:
            raise UsageError("Messages are made in workers only.")
        blocks = Blocks(steps=self._steps, worker=info.id, num_workers=info.num_workers)
        batches = self._reader.batches(self._cursor, blocks, ids_at_once=None)
        for number, batch in enumerate(batches):
            yield self.slots.write(batch, worker=info.id, number=number)
