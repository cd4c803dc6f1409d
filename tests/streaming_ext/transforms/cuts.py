"""Blocks that are cut anywhere: the samples of a chain must not depend on the ends of blocks."""

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from streaming_ext.transforms import CheckpointableDataset
from streaming_ext.transforms.block import Block, State, tokens_of
from streaming_ext.transforms.flow import Flow, Input, Open, Subset

Chain = CheckpointableDataset


def _tokens(numbers: Any) -> Any:
    lengths = numbers % 5
    starts = np.cumsum(lengths) - lengths
    return np.repeat(numbers - starts, lengths) + np.arange(lengths.sum())


class Cuts:
    """Random lengths of blocks, which differ each time a chain is opened."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def _length(self) -> int:
        return self._random.choice([0, 1, 2, 3, 7, 64, 1000, 4095, 4096, 4097, 9000])

    def numbers(self, count: int) -> Chain:
        """Return a chain of `count` samples, see `sample`."""

        def opener(subset: Subset, state: State) -> Flow:
            at = state or 0
            while at < count:
                numbers = np.arange(at, min(at + (self._length() or 1), count))
                at += len(numbers)
                column = tokens_of(_tokens(numbers), numbers % 5)
                columns = {"id": pa.array(numbers), "input_ids": column}
                yield Block(columns=columns, state=at)

        return Chain(opener, "numbers")

    def of(self, chain: Chain) -> Chain:
        """Return the samples of a chain in blocks of other lengths, some of them empty."""

        def cut(subset: Subset, state: State, *, source: Open) -> Flow:
            with Input(source, subset, state) as given:
                while True:
                    length = self._length()
                    given.has(length)
                    block = given.use(length)
                    if length and not len(block):
                        return
                    yield block.at(given.state())

        return chain._then("cut", cut)


def sample(number: int) -> dict[str, Any]:
    """Return sample `number` of `Cuts.numbers`."""
    return {"id": number, "input_ids": list(range(number, number + number % 5))}
