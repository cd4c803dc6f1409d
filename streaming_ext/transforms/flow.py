"""Flows of blocks: what a source yields, and what a step makes of it.

Each block carries the state after it. A state says where the source of a step is opened again:
{"source": a state of that source, "skip": samples after it that were used already}. So a state is
small whatever a step holds back, and a flow that is opened at one yields the same samples.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, Protocol, TypeAlias

from streaming_ext.base.errors import UsageError
from streaming_ext.transforms.block import Block, State, concat

Flow: TypeAlias = Generator[Block, None, None]
# Number of a subset of the samples, and how many subsets there are: each worker reads another one.
Subset: TypeAlias = tuple[int, int]
# A block made of the samples that came, and the count for the next call; None at the end.
Made: TypeAlias = tuple[Block, int | None]
# Makes a block of the samples that came, and uses up some of them. It receives its count, 0 at
# first, and whether no more samples come.
Step: TypeAlias = Callable[["Input", int, bool], Made]


class Source(Protocol):
    """Something that yields samples, such as a dataset."""

    @property
    def open(self) -> Callable[..., Flow]:
        """Opens its blocks: of a subset, from a state on."""
        ...


class Input:
    """The samples of a source that came and were not used up, and the state before each.

    Samples are numbered from where the source was opened.
    """

    def __init__(self, source: Source, subset: Subset, state: State) -> None:
        """Open a source at `state["source"]`, after `state["skip"]` samples.

        Raises:
            ConfigMismatchError: the state is of other data.
        """
        self.source, self.subset = source, subset
        begin, self._skip = (None, 0) if state is None else (state["source"], int(state["skip"]))
        self._flow = source.open(subset, begin)
        self._states = deque([(0, begin)])
        self.used, self._came = self._skip, 0
        self.passes = 0  # see `Block`, of the newest one
        self.size = 1  # samples of the newest block
        self.blocks: deque[Block] = deque()  # not used up

    @property
    def have(self) -> int:
        """How many samples came that were not used up."""
        return sum(map(len, self.blocks))

    @property
    def rest(self) -> Block:
        """The samples that came and were not used up."""
        self.blocks = deque([concat(self.blocks)])
        return self.blocks[0]

    def more(self) -> bool:
        """Append one more block, which may be empty; False at the end."""
        block = next(self._flow, None)
        if block is None:
            if self._came < self._skip:
                raise UsageError("A state names more samples than there are: the data changed.")
            return False
        skipped = min(max(self._skip - self._came, 0), len(block))
        self._came += len(block)
        self.passes, self.size = block.passes, max(len(block), 1)
        if block.state is not None:
            self._states.append((self._came, block.state))
        if skipped < len(block):
            self.blocks.append(block.slice(skipped, len(block)) if skipped else block)
        return True

    def use(self, count: int | None = None) -> Block:
        """Use up the first samples, by default all."""
        left, used = self.have if count is None else count, []
        while left and self.blocks:
            block = self.blocks.popleft()
            if len(block) > left:
                self.blocks.appendleft(block.slice(left, len(block)))
                block = block.slice(0, left)
            used.append(block)
            left -= len(block)
            self.used += len(block)
        return concat(used)

    def exactly(self, count: int) -> Block:
        """Use up this many samples; fewer at the end."""
        while self.have < count and self.more():
            pass
        return self.use(count)

    def state(self, number: int | None = None) -> dict[str, Any]:
        """The state before a sample, by default the first unused one; states before it go."""
        number = self.used if number is None else number
        while len(self._states) > 1 and self._states[1][0] <= number:
            self._states.popleft()
        first, begin = self._states[0]
        return {"source": begin, "skip": number - first}

    def close(self) -> None:
        """Stop what runs in the background."""
        self._flow.close()

    def __enter__(self) -> "Input":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def through(
    subset: Subset, state: State, *, source: Source, step: Step, same: bool = False
) -> Flow:
    """The blocks that a step makes; samples that it does not use up stay for its next call.

    Args:
        subset: of the samples.
        state: of this flow.
        source: of the samples.
        step: see `Step`.
        same: whether each pass of the source makes the same samples.
    """
    count = 0 if state is None else state["count"]
    with Input(source, subset, state) as given:
        while count is not None:
            last = not given.more()
            made, count = step(given, count, last)
            count = None if last else count
            yield made.at({**given.state(), "count": count}, given.passes if same else 0)


def others_have_any(
    source: Source,
    subset: Subset,
    keep: Callable[[Block], Block] = lambda block: block,
) -> bool:
    """Whether another subset has a sample that `keep` keeps; reads until one is found."""
    own, count = subset
    for number in {*range(count)} - {own}:
        with closing(source.open((number, count), None)) as flow:
            for block in flow:
                if block.passes > count:
                    break
                if len(block) and len(keep(block)):
                    return True
    return False


def growing(most: int) -> Iterator[int]:
    """How many samples a source yields at once: few at first, because the consumer waits."""
    count = 1
    while True:
        yield count
        count = min(2 * count, most)
