"""Slots of shared memory through which batches leave a worker.

Sending tensors through torch makes a file in shared memory and a socket for each message, which
costs more than making the batch, and a killed job leaves the socket's folder behind. These slots
are made once, have no name, and are freed with the last process that holds them.
"""

import mmap
import pickle
from collections.abc import Iterator
from typing import Any

import torch

from streaming_ext.base.arrays import ceil_div
from streaming_ext.order.state import Cursor
from streaming_ext.training.batch_reader import BatchReader
from streaming_ext.training.columns import Batch

MESSAGE_BYTES = 2 << 20  # of ids, which each worker sends at once, so that sending costs little
_ALIGNMENT = 64
_ROW_EXTRAS = 64  # bytes per row for other arrays, besides half the bytes of its tokens
# Worker, slot, begin and end of each array in the slot, and the pickled batch without arrays.
Message = tuple[int, int, list[tuple[int, int]], bytes]


class Messages:
    """The messages of workers; each is a block of steps, with its arrays in one slot of memory.

    A worker uses its slots in turn.
    """

    def __init__(
        self, reader: BatchReader, cursor: Cursor, *, num_workers: int, slots: int, inherited: bool
    ) -> None:
        """Allocate the memory.

        Args:
            reader: the reader of the batches.
            cursor: the position of the first step; the last step is the last one of the epoch.
            num_workers: the number of workers that will send.
            slots: the number of slots per worker, more than it ever has messages on the way.
            inherited: True if workers are forked; False to send the memory to them.
        """
        self._reader, self._cursor, self._slots = reader, cursor, slots
        most, self._steps = 0, []
        for phase in reader.plan.phases(cursor):
            size = phase.steps_at_once(MESSAGE_BYTES // reader.source.reader.dtype.itemsize)
            self._steps.append((range(phase.first, phase.stop), size))
            row_bytes = phase.length * reader.token_bytes
            most = max(most, size * phase.batch_size * (row_bytes + row_bytes // 2 + _ROW_EXTRAS))
        self._bytes = ceil_div(most + 16 * _ALIGNMENT, mmap.PAGESIZE) * mmap.PAGESIZE
        total = num_workers * slots * self._bytes
        self._memory: mmap.mmap | torch.Tensor = (
            mmap.mmap(-1, total)
            if inherited
            else torch.zeros(total, dtype=torch.uint8, device="cpu").share_memory_()  # type: ignore[no-untyped-call]
        )

    def of_worker(self, worker: int, num_workers: int) -> Iterator[Message]:
        """Yield the messages of one worker."""
        batches = self._reader.batches(
            self._cursor, self._steps, ids_at_once=None, worker=worker, num_workers=num_workers
        )
        for number, batch in enumerate(batches):
            yield self._write(batch, worker=worker, slot=number % self._slots)

    def _write(self, batch: Batch, *, worker: int, slot: int) -> Message:
        """Put the arrays of a batch into a slot."""
        memory, spans, offset = self._slot(worker, slot), [], 0

        def is_sent(array: pickle.PickleBuffer) -> bool:
            nonlocal offset
            values = array.raw()
            end = offset + values.nbytes
            if end > self._bytes:  # no room, as with documents of a few tokens
                return True
            memory[offset:end] = values
            spans.append((offset, end))
            offset = ceil_div(end, _ALIGNMENT) * _ALIGNMENT
            return False

        return worker, slot, spans, pickle.dumps(batch, 5, buffer_callback=is_sent)

    def read(self, message: Message) -> Batch:
        """Read the batch of a message; `tokens` lasts until the worker uses the slot again."""
        worker, slot, spans, pickled = message
        memory = self._slot(worker, slot)
        arrays = (memory[begin:end] for begin, end in spans)
        tokens = next(arrays)  # the first array of a batch
        batch: Batch = pickle.loads(pickled, buffers=(tokens, *map(bytearray, arrays)))  # noqa: S301
        return batch

    def _slot(self, worker: int, slot: int) -> memoryview:
        memory: Any = self._memory
        memory = memory.numpy() if isinstance(memory, torch.Tensor) else memory
        begin = (worker * self._slots + slot) * self._bytes
        return memoryview(memory)[begin : begin + self._bytes]
