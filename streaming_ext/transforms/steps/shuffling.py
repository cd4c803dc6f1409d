"""`shuffle`: a buffer of samples of which a random one is taken, and the next one put in its place.

A state does not hold the buffer: which samples lie in it follows from the draws (`drawing.py`), and
they are read again, from the place in the source where the oldest one came from.
"""

from collections import deque

import numpy as np

from streaming_ext.errors import UsageError
from streaming_ext.sampler.orders.order import Ints
from streaming_ext.transforms.block import Block, concat
from streaming_ext.transforms.flow import Flow, Opening, Source, State, Taken, inner
from streaming_ext.transforms.steps.drawing import exchanged, held_after, last_order, slots_drawn

_MOST = 4096  # samples drawn at once


class ShuffleFlow(Flow):
    """Samples in an order that is random within about the length of a buffer, or a few times it.

    Samples have numbers, in the order of the source; draw t puts sample `slots + t` into a slot.
    """

    def __init__(self, source: Flow, slots: int, seed: int, state: State | None) -> None:
        """Begin, or go on.

        Args:
            source: opened at `state["source"]`.
            slots: of the buffer.
            seed: of the draws.
            state: see `state`.
        """
        at = state or {"first": 0, "skip": 0, "drawn": 0, "emptied": 0, "all": None}
        self._slots, self._seed = slots, seed
        self._first = int(at["first"])  # the number of the sample that the source gives first
        self._source = Taken(source, int(at["skip"]))
        self._drawn, self._emptied = int(at["drawn"]), int(at["emptied"])
        self._all = None if at["all"] is None else int(at["all"])  # samples of the source
        # Where some samples begin, oldest first; before the oldest sample in the buffer.
        self._places: deque[tuple[int, State]] = deque()
        self._held: Ints | None = None  # numbers: (slots,)
        self._pool = Block(samples=[])  # samples in the buffer, and some that were there
        self._numbers = np.empty(0, np.int64)  # of those: ascending
        self._read = self._first

    def _fill(self) -> Ints:
        """Read what lies in the buffer, at the beginning or behind a resume."""
        since = max(0, self._first - self._slots)
        held = held_after(self._seed, self._slots, self._drawn, since)
        count = self._slots + self._drawn - self._first
        while count and (got := self._next(count)):
            count -= got
            self._forget(held)
        if count or (self._all is not None and self._all < self._slots):
            if self._drawn or (self._all is not None and self._read != self._all):
                raise UsageError("A state names more samples than there are: the data changed.")
            self._all = self._read
            held = held[held < self._read]
        self._held = held
        return held

    def _next(self, most: int) -> int:
        """Put the next samples into the pool; returns how many there were."""
        self._places.append((self._read, self._source.state()))
        block = self._source.some(min(most, _MOST))
        if block is None:
            return 0
        self._pool = concat([self._pool, block]) if len(self._pool) else block
        self._numbers = np.append(self._numbers, np.arange(self._read, self._read + len(block)))
        self._read += len(block)
        return len(block)

    def _forget(self, held: Ints) -> None:
        """Leave out what is not in the buffer, once it is as much as what is."""
        if len(self._numbers) < 2 * self._slots:
            return
        kept = np.flatnonzero(np.isin(self._numbers, held))
        self._pool, self._numbers = self._pool.gather(kept), self._numbers[kept]

    def pull(self, most: int) -> Block | None:
        held = self._fill() if self._held is None else self._held
        if self._all is None:
            count = self._next(max(most, self._slots))
            if count:
                drawn = slots_drawn(self._seed, self._slots, self._drawn, count)
                given, self._held = exchanged(held, drawn, self._slots + self._drawn)
                self._drawn += count
                block = self._given(given)
                self._forget(self._held)
                return block
            self._all = self._read
        order = last_order(self._seed, len(held))[self._emptied : self._emptied + most]
        if not len(order):
            return None
        self._emptied += len(order)
        return self._given(held[order])

    def _given(self, numbers: Ints) -> Block:
        return self._pool.gather(np.searchsorted(self._numbers, numbers))

    def state(self) -> State:
        held = self._held
        if held is None:
            # Nothing was pulled since the beginning, or since a resume.
            at = self._source.state()
            return {**at, "first": self._first, "drawn": self._drawn, "emptied": self._emptied,
                    "all": self._all}  # fmt: skip
        oldest = int(held.min()) if len(held) else self._read
        while len(self._places) > 1 and self._places[1][0] <= oldest:
            self._places.popleft()
        first, at = self._places[0] if self._places else (self._read, self._source.state())
        return {**at, "first": first, "drawn": self._drawn, "emptied": self._emptied,
                "all": self._all}  # fmt: skip

    def close(self) -> None:
        self._source.close()


def open_shuffled(
    source: Source, opening: Opening, state: State | None, *, slots: int, seed: int
) -> Flow:
    """`shuffle`; each worker draws otherwise."""
    own = seed + (opening.share[0] << 32)
    return ShuffleFlow(source.open(opening, inner(state)), slots, own, state)
