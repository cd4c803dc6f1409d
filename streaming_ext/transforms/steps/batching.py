"""`batch`: samples in groups. Columns of tokens of one length become one array for all batches."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from streaming_ext.transforms.block import Block, Column, Ragged, Sample
from streaming_ext.transforms.flow import Flow, Opening, Source, State, Taken, inner

Collate = Callable[[Sequence[Sample]], Any]
_MOST = 4096  # samples at once, where a batch has no more


class BatchFlow(Flow):
    """Groups of samples, the last one perhaps smaller."""

    def __init__(
        self, source: Flow, size: int, collate: Collate | None, *, drop_last: bool, skip: int
    ) -> None:
        self._source = Taken(source, skip)
        self._size, self._collate, self._drop_last = size, collate, drop_last

    def pull(self, most: int) -> Block | None:
        batches_at_once = max(1, min(most, _MOST // self._size))
        block = self._source.exactly(batches_at_once * self._size)  # fewer at the end alone
        if block is None or (self._drop_last and len(block) < self._size):
            return None
        whole = len(block) - len(block) % self._size
        batches = self._arrays(block.slice(0, whole)) if whole else []
        if batches is None:
            batches = [self._one(block.slice(at, at + self._size))
                       for at in range(0, whole, self._size)]  # fmt: skip
        if whole < len(block) and not self._drop_last:
            batches.append(self._one(block.slice(whole, len(block))))
        return Block(samples=batches)

    def _one(self, block: Block) -> Any:
        return (self._collate or default_collate)(list(block.samples))

    def _arrays(self, block: Block) -> list[Any] | None:
        """Batches cut out of whole columns; None where samples must be looked at."""
        if self._collate is not None or not block.columns:
            return None
        made: dict[str, Sequence[Any]] = {}
        for name, column in block.columns.items():
            batches = self._of_column(column)
            if batches is None:
                return None
            made[name] = batches
        return [dict(zip(made, values, strict=True)) for values in zip(*made.values(), strict=True)]

    def _of_column(self, column: Column) -> Sequence[Any] | None:
        if not isinstance(column, Ragged) or column.listed:
            return None
        lengths = column.lengths
        if (lengths != lengths[0]).any():
            return None
        step = self._size * int(lengths[0])
        flat = column.values[column.offsets[0] : column.offsets[-1]]
        # Of its own memory each: a batch may be kept, sent or saved alone.
        return [
            torch.from_numpy(np.array(flat[at * step : (at + 1) * step], np.int64)).view(
                self._size, -1
            )
            for at in range(len(lengths) // self._size)
        ]

    def state(self) -> State:
        return self._source.state()

    def close(self) -> None:
        self._source.close()


def open_batched(
    source: Source,
    opening: Opening,
    state: State | None,
    *,
    size: int,
    collate: Collate | None,
    drop_last: bool,
) -> Flow:
    """`batch`."""
    below = opening if collate is None else opening.asking(None)
    return BatchFlow(source.open(below, inner(state)), size, collate, drop_last=drop_last,
                     skip=int(inner(state, "skip") or 0))  # fmt: skip
