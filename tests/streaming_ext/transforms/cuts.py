"""Blocks cut anywhere: where one ends is free, and nothing that a chain gives may depend on it."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np

from streaming_ext.transforms import CheckpointableDataset
from streaming_ext.transforms.block import Block, Ragged
from streaming_ext.transforms.flow import Flow, Opening, Source, State, Taken, inner

Chain = CheckpointableDataset


class _NumbersFlow(Flow):
    """Samples n with `n % 5` tokens n, n + 1, ..., in blocks as long as a random number says."""

    def __init__(self, count: int, next_: int, longest: Callable[[], int]) -> None:
        self._count, self._next, self._longest = count, next_, longest

    def pull(self, most: int) -> Block | None:
        if self._next >= self._count:
            return None
        stop = min(self._next + self._longest(), self._count)
        numbers = np.arange(self._next, stop)
        self._next = stop
        column = Ragged.of_lengths(_tokens(numbers), numbers % 5)
        return Block({"id": numbers.tolist(), "input_ids": column})

    def state(self) -> State:
        return {"next": self._next}

    def close(self) -> None:
        pass


def _tokens(numbers: Any) -> Any:
    lengths = numbers % 5
    starts = np.cumsum(lengths) - lengths
    return np.repeat(numbers - starts, lengths) + np.arange(lengths.sum())


class _CutFlow(Flow):
    """The same samples in blocks of other lengths, some of them empty."""

    def __init__(self, source: Flow, skip: int, longest: Callable[[], int]) -> None:
        self._source, self._longest = Taken(source, skip), longest

    def pull(self, most: int) -> Block | None:
        length = self._longest()
        return self._source.exactly(length) if length else Block(samples=[])

    def state(self) -> State:
        return self._source.state()

    def close(self) -> None:
        self._source.close()


class Cuts:
    """Lengths of blocks: whoever opens a chain anew gets others."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def _length(self) -> int:
        return self._random.choice([0, 1, 2, 3, 7, 64, 1000, 4095, 4096, 4097, 9000])

    def numbers(self, count: int) -> Chain:
        """So many samples, see `sample`."""

        def opener(opening: Opening, state: State | None) -> Flow:
            at = 0 if state is None else int(state["next"])
            return _NumbersFlow(count, at, lambda: self._length() or 1)

        return Chain(opener, "numbers")

    def of(self, chain: Chain) -> Chain:
        """The samples of a chain."""

        def opener(source: Source, opening: Opening, state: State | None) -> Flow:
            skip = int(inner(state, "skip") or 0)
            return _CutFlow(source.open(opening, inner(state)), skip, self._length)

        return Chain(partial(opener, chain), f"{chain.described} > cut")


def sample(number: int) -> dict[str, Any]:
    """Sample `number` of `Cuts.numbers`."""
    return {"id": number, "input_ids": list(range(number, number + number % 5))}
