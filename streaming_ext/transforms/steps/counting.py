"""Steps that count samples: `take`, `stride`, `enumerate`, `repeat`."""

from contextlib import closing
from dataclasses import replace

import numpy as np

from streaming_ext.errors import UsageError
from streaming_ext.transforms.block import Block
from streaming_ext.transforms.flow import Flow, Opening, Passes, Source, State, inner


class TakeFlow(Flow):
    """The first so many samples."""

    def __init__(self, source: Flow, count: int, taken: int) -> None:
        self._source, self._count, self._taken = source, count, taken

    def pull(self, most: int) -> Block | None:
        left = self._count - self._taken
        block = self._source.pull(min(most, left)) if left else None
        if block is None:
            return None
        block = block.slice(0, left) if len(block) > left else block
        self._taken += len(block)
        return block

    def state(self) -> State:
        return {"source": self._source.state(), "taken": self._taken}

    def close(self) -> None:
        self._source.close()


class StrideFlow(Flow):
    """Every so many-th sample: interval 3, offset 1 are the samples 1, 4, 7, ..."""

    def __init__(self, source: Flow, interval: int, offset: int, passed: int) -> None:
        self._source, self._interval, self._offset = source, interval, offset
        self._passed = passed % interval

    def pull(self, most: int) -> Block | None:
        block = self._source.pull(most * self._interval)
        if block is None:
            return None
        first = (self._offset - self._passed) % self._interval
        self._passed = (self._passed + len(block)) % self._interval
        return block.gather(np.arange(first, len(block), self._interval))

    def state(self) -> State:
        return {"source": self._source.state(), "passed": self._passed}

    def close(self) -> None:
        self._source.close()


class EnumerateFlow(Flow):
    """Samples with their number; of worker 1 of 3 they are 1, 4, 7, ..."""

    def __init__(self, source: Flow, column: str, opening: Opening, count: int) -> None:
        self._source, self._column, self._count = source, column, count
        self._first, self._step = opening.share

    def pull(self, most: int) -> Block | None:
        block = self._source.pull(most)
        if block is None:
            return None
        numbers = range(self._count, self._count + len(block))
        self._count += len(block)
        return block.with_columns(
            {self._column: [self._first + self._step * number for number in numbers]}
        )

    def state(self) -> State:
        return {"source": self._source.state(), "count": self._count}

    def close(self) -> None:
        self._source.close()

    def passes(self) -> Passes:
        return self._source.passes()


class RepeatFlow(Flow):
    """The same samples again and again."""

    def __init__(
        self, source: Source, times: int | None, opening: Opening, state: State | None
    ) -> None:
        self._dataset, self._times, self._opening = source, times, opening
        self._done = 0 if state is None else int(state["done"])
        self._any = state is not None and bool(state["any"])
        self._flow = source.open(opening, inner(state))

    def pull(self, most: int) -> Block | None:
        block = self._flow.pull(most)
        if block is not None:
            self._any = self._any or bool(len(block))
            return block
        if self._times is not None and self._done + 1 >= self._times:
            return None
        if not self._any:
            if self._times is None and not self._others_have_any():
                raise UsageError("repeat() of a dataset without a sample would never end.")
            self._times = self._done + 1  # a worker without a sample is at its end
            return None
        self._flow.close()
        self._done, self._any = self._done + 1, False
        self._flow = self._dataset.open(self._opening, None)
        return Block(samples=[])

    def _others_have_any(self) -> bool:
        """Whether a worker other than this one has a sample; reads on until one is found."""
        own, workers = self._opening.share
        for number in range(workers):
            if number == own:
                continue
            flow = self._dataset.open(replace(self._opening, share=(number, workers)), None)
            with closing(flow):
                while (block := flow.pull(1)) is not None:
                    if len(block):
                        return True
        return False

    def state(self) -> State:
        return {"source": self._flow.state(), "done": self._done, "any": self._any}

    def close(self) -> None:
        self._flow.close()

    def passes(self) -> Passes:
        ended = self._done if self._times is None else 0
        return Passes(ended, ended)


def open_take(source: Source, opening: Opening, state: State | None, *, count: int) -> Flow:
    """`take`; worker 0 of 2 has 3 of 5 samples, worker 1 has 2."""
    number, workers = opening.share
    own = count // workers + (number < count % workers)
    return TakeFlow(source.open(opening, inner(state)), own, int(inner(state, "taken") or 0))


def open_stride(
    source: Source, opening: Opening, state: State | None, *, interval: int, offset: int
) -> Flow:
    """`stride`."""
    passed = int(inner(state, "passed") or 0)
    return StrideFlow(source.open(opening, inner(state)), interval, offset, passed)


def open_enumerate(source: Source, opening: Opening, state: State | None, *, column: str) -> Flow:
    """`enumerate`."""
    asked = opening.columns
    below = opening.asking(None if asked is None else asked - {column})
    count = int(inner(state, "count") or 0)
    return EnumerateFlow(source.open(below, inner(state)), column, opening, count)


def open_repeat(
    source: Source, opening: Opening, state: State | None, *, times: int | None
) -> Flow:
    """`repeat`."""
    return RepeatFlow(source, times, opening, state)
