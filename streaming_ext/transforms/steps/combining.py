"""Several datasets as one: alternately by weights, or one behind the other."""

from collections.abc import Sequence

import numpy as np

from streaming_ext.sampler.orders.order import Ints
from streaming_ext.transforms.block import Block, concat
from streaming_ext.transforms.flow import Flow, Opening, Passes, Source, State, Taken, inner

_MOST = 4096  # samples at once


def turns(weights: Sequence[float], count: int) -> Ints:
    """Whose turn it is, `count` times: each source is at any time as near to its weight as can be.

    With the weights 1.5 and 1: 0 1 0 1 0, and again.
    """
    total = sum(weights)
    gains = [weight / total for weight in weights]
    due = [0.0] * len(gains)
    found = np.empty(count, np.int64)
    for turn in range(count):
        due = [have + gain for have, gain in zip(due, gains, strict=True)]
        chosen = due.index(max(due))
        due[chosen] -= 1.0
        found[turn] = chosen
    return found


class InterleaveFlow(Flow):
    """A sample of the source whose turn it is, until one is at its end."""

    def __init__(
        self, sources: Sequence[Flow], cycle: Ints, turn: int, skips: Sequence[int]
    ) -> None:
        self._cycle, self._turn = cycle, turn
        self.ended = False
        self._sources = [Taken(source, skip) for source, skip in zip(sources, skips, strict=True)]

    def pull(self, most: int) -> Block | None:
        if self.ended:
            return None
        count = max(1, min(most, _MOST))
        chosen = self._cycle[(self._turn + np.arange(count)) % len(self._cycle)]
        wanted = np.bincount(chosen, minlength=len(self._sources)).tolist()
        got = [source.exactly(number) if number else None
               for source, number in zip(self._sources, wanted, strict=True)]  # fmt: skip
        have = [0 if block is None else len(block) for block in got]
        rank = np.empty(count, np.int64)  # of each turn among those of its source
        for number in range(len(got)):
            of_source = chosen == number
            rank[of_source] = np.arange(of_source.sum())
        # The first turn whose source has no sample any more is the end.
        without = np.flatnonzero(rank >= np.array(have)[chosen])
        if len(without):
            count, self.ended = int(without[0]), True
        starts = np.cumsum([0, *have[:-1]])
        self._turn += count
        if not count:
            return None
        whole = concat([block for block in got if block is not None])
        return whole.gather((starts[chosen] + rank)[:count])

    def state(self) -> State:
        return {"turn": self._turn, "ended": self.ended,
                "sources": [source.state() for source in self._sources]}  # fmt: skip

    def close(self) -> None:
        for source in self._sources:
            source.close()

    def passes(self) -> Passes:
        each = [source.passes() for source in self._sources]
        return Passes(min(one.least for one in each), max(one.most for one in each))


class ConcatFlow(Flow):
    """One source behind the other."""

    def __init__(self, sources: Sequence[Source], opening: Opening, state: State | None) -> None:
        self._sources, self._opening = sources, opening
        self._number = 0 if state is None else int(state["number"])
        self._flow = sources[self._number].open(opening, inner(state))

    def pull(self, most: int) -> Block | None:
        block = self._flow.pull(most)
        if block is not None or self._number + 1 >= len(self._sources):
            return block
        self._flow.close()
        self._number += 1
        self._flow = self._sources[self._number].open(self._opening, None)
        return Block(samples=[])

    def state(self) -> State:
        return {"number": self._number, "source": self._flow.state()}

    def close(self) -> None:
        self._flow.close()


def open_interleaved(
    opening: Opening,
    state: State | None,
    *,
    sources: Sequence[Source],
    weights: Sequence[float],
    cycle: int,
) -> Flow:
    """`interleave_datasets`."""
    at = [None] * len(sources) if state is None else list(state["sources"])
    flows = [source.open(opening, inner(one)) for source, one in zip(sources, at, strict=True)]
    skips = [int(inner(one, "skip") or 0) for one in at]
    flow = InterleaveFlow(flows, turns(weights, cycle), int(inner(state, "turn") or 0), skips)
    flow.ended = bool(inner(state, "ended"))
    return flow


def open_concatenated(opening: Opening, state: State | None, *, sources: Sequence[Source]) -> Flow:
    """`concat_datasets`."""
    return ConcatFlow(sources, opening, state)
