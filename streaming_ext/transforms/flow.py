"""Flows of blocks: a source yields blocks, and a step makes other blocks of them.

Each block carries the state after it. A state says where to open the source of a step again:
{"source": a state of that source, "skip": samples after it that were used already}. So a state is
small whatever a step holds back, and a flow that is opened at a state yields the same samples.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from functools import wraps
from itertools import takewhile
from typing import Any, TypeAlias

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import UsageError
from streaming_ext.transforms.block import Block, State, concat

Flow: TypeAlias = Generator[Block, None, None]
# The number of a subset of the samples, and the number of subsets; each worker reads its own.
Subset: TypeAlias = tuple[int, int]
# A function that opens a flow of a subset, from a state on.
Open: TypeAlias = Callable[[Subset, State], Flow]
# A function that also takes settings of its own, and for a source the number of a pass.
Step: TypeAlias = Callable[..., Flow]
# A block made of the samples that came, and the count for the next call; None at the end.
Made: TypeAlias = tuple[Block, int | None]


class Input(AbstractContextManager["Input"]):
    """The samples of a source that came and were not used up, and the state before each.

    Samples are numbered from where the source was opened.
    """

    def __init__(self, source: Open, subset: Subset, state: State) -> None:
        """Open a source at `state["source"]`, after `state["skip"]` samples."""
        state = state or {"source": None, "skip": 0}
        begin, self._skip = state["source"], state["skip"]
        self.subset, self._flow = subset, source(subset, begin)
        self._states = deque([(0, begin)])
        self.used, self._came = self._skip, 0
        self.passes = 0  # of the newest block, see `Block`
        self.size = 1  # samples of the newest block
        self._blocks: list[Block] = []  # not used up

    @property
    def have(self) -> int:
        """Number of samples that came and were not used up."""
        return sum(map(len, self._blocks))

    @property
    def rest(self) -> Block:
        """Samples that came and were not used up."""
        self._blocks = [concat(self._blocks)]
        return self._blocks[0]

    def more(self) -> bool:
        """Append one more block, which may be empty; return False at the end."""
        block = next(self._flow, None)
        if block is None:
            if self._came < self._skip:
                raise UsageError("A state names more samples than there are: the data changed.")
            return False
        new = block.slice(max(self._skip - self._came, 0), len(block))
        self._came += len(block)
        self.passes, self.size = block.passes, max(len(block), 1)
        if block.state is not None:
            self._states.append((self._came, block.state))
        self._blocks.append(new)
        return True

    def has(self, count: int = 1) -> bool:
        """Read until there are this many samples; return False if the source ends before."""
        while self.have < count:
            if not self.more():
                return False
        return True

    def use(self, count: int | None = None) -> Block:
        """Use up and return the first samples, by default all; fewer if there are no more."""
        block = self.rest
        used = block if count is None else block.slice(0, count)
        self._blocks = [block.slice(len(used), len(block))]
        self.used += len(used)
        return used

    def state(self, number: int | None = None) -> dict[str, Any]:
        """Return the state before a sample, by default the first unused one; forget older ones."""
        number = self.used if number is None else number
        while len(self._states) > 1 and self._states[1][0] <= number:
            self._states.popleft()
        first, begin = self._states[0]
        return {"source": begin, "skip": number - first}

    def close(self) -> None:
        """Stop the work in the background."""
        self._flow.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def take_in_turns(inputs: Sequence[Input], chosen: Ints) -> Block:
    """Take a sample of the chosen input, turn after turn; each input must have enough.

    inputs a0 a1 and b0 b1 b2, chosen 1 0 1: a0 and b0 b1 are used up, at 0, 1, 2 end to end
    the turns sorted by input are 1, 0, 2, so turns 0, 1, 2 take 1, 0, 2: b0 a0 b1
    """
    blocks = [given.use(int((chosen == number).sum())) for number, given in enumerate(inputs)]
    return concat(blocks).take(np.argsort(np.argsort(chosen, kind="stable")))


def step(make: Callable[..., Made], *, same: bool = False) -> Step:
    """Make a step from a function that makes a block of samples and a count.

    Args:
        make: a function that uses up some samples of its `Input`, which has at least one; the
            others stay for the next call. It receives its count, 0 at first, True if no more
            samples come, and its settings.
        same: true if each pass of the source makes the same samples.
    """

    @wraps(make)
    def flow(subset: Subset, state: State, *, source: Open, **settings: Any) -> Flow:
        count = 0 if state is None else state["count"]
        with Input(source, subset, state) as given:
            while count is not None:
                last, made = not given.more(), Block()
                if given.have:
                    made, count = make(given, count, last, **settings)
                count = None if last else count
                yield made.at({**given.state(), "count": count}, given.passes if same else 0)

    return flow


def require_others(
    source: Open,
    subset: Subset,
    problem: str,
    keep: Callable[[Block], Block] = lambda block: block,
) -> None:
    """Require that another subset has a sample that `keep` keeps; read until one is found.

    Raises:
        UsageError: no other subset has one; `problem` is the message.
    """
    own, count = subset
    for number in {*range(count)} - {own}:
        with closing(source((number, count), None)) as flow:
            blocks = takewhile(lambda block: block.passes <= count, flow)
            if any(len(block) and len(keep(block)) for block in blocks):
                return
    raise UsageError(problem)


def block_sizes(most: int) -> Iterator[int]:
    """Yield the sizes of a source's blocks: small at first, since the consumer waits."""
    count = 1
    while True:
        yield count
        count = min(2 * count, most)
