"""What a loader's workers send: some steps each, through slots of shared memory."""

from collections.abc import Iterator

from torch.utils.data import IterableDataset, get_worker_info

from streaming_ext.errors import UsageError
from streaming_ext.loading.batch_reader import BatchReader
from streaming_ext.loading.blocks import Blocks, Run
from streaming_ext.loading.tensors import Message, Slots
from streaming_ext.sampler.cursor import Cursor

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
        stages = reader.plan.stages(cursor)
        together = [stage.together(MESSAGE_BYTES // width) for stage in stages]
        self._runs = [
            Run(steps=range(stage.first, stage.stop), size=size)
            for stage, size in zip(stages, together, strict=True)
        ]
        self.slots = Slots(
            workers=num_workers,
            each=slots,
            inherited=inherited,
            messages=[
                (size * stage.batch_size, stage.length * reader.token_bytes)
                for stage, size in zip(stages, together, strict=True)
            ],
        )

    def __iter__(self) -> Iterator[Message]:
        """The messages of this worker, a block of steps each."""
        info = get_worker_info()
        if info is None:
            raise UsageError("Messages are made in workers only.")
        blocks = Blocks(runs=self._runs, worker=info.id, num_workers=info.num_workers)
        batches = self._reader.batches(self._cursor, blocks, gathered=None)
        for number, batch in enumerate(batches):
            yield self.slots.write(batch, worker=info.id, number=number)
