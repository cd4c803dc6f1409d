"""Flows of blocks: what a source yields, and what a step makes of it.

Each block carries the state after it. A state says where the source of a step is opened again:
{"source": a state of that source, "skip": samples after it that were used already}. So a state is
small whatever a step holds back, and a flow that is opened at one yields the same samples.
"""

import copy
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import wraps
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.transforms.block import Block, Sample, State, concat

if TYPE_CHECKING:
    from streaming_ext.transforms.checkpointable import CheckpointableDataset

STATE_VERSION: Final = 1

Flow: TypeAlias = Generator[Block, None, None]
# Opens a flow: of a subset, from a state on. That of a source takes the number of a pass too.
Open: TypeAlias = Callable[..., Flow]
# Number of a subset of the samples, and how many subsets there are: each worker reads another one.
Subset: TypeAlias = tuple[int, int]
# A block made of the samples that came, and the count for the next call; None at the end.
Made: TypeAlias = tuple[Block, int | None]


class Input:
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
        self.passes = 0  # see `Block`, of the newest one
        self.size = 1  # samples of the newest block
        self._blocks: list[Block] = []  # not used up

    @property
    def have(self) -> int:
        """How many samples came that were not used up."""
        return sum(map(len, self._blocks))

    @property
    def rest(self) -> Block:
        """The samples that came and were not used up."""
        self._blocks = [concat(self._blocks)]
        return self._blocks[0]

    def more(self) -> bool:
        """Append one more block, which may be empty; False at the end."""
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
        """Read until there are this many samples; False if the source ends before."""
        while self.have < count:
            if not self.more():
                return False
        return True

    def use(self, count: int | None = None) -> Block:
        """Use up the first samples, by default all; fewer if there are no more."""
        block = self.rest
        used = block if count is None else block.slice(0, count)
        self._blocks = [block.slice(len(used), len(block))]
        self.used += len(used)
        return used

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


def in_turns(inputs: Sequence[Input], chosen: Ints) -> Block:
    """A sample of the input that is chosen, turn after turn; each must have enough."""
    blocks = [given.use(int((chosen == number).sum())) for number, given in enumerate(inputs)]
    # Of (turns,) numbers among the samples of all inputs end to end.
    return concat(blocks).take(np.argsort(np.argsort(chosen, kind="stable")))


def step(make: Callable[..., Made], *, same: bool = False) -> Open:
    """A step: a flow of the blocks that a function makes of samples and a count.

    Args:
        make: uses up some samples of its `Input`, which has one at least; the others stay for its
            next call. It receives its count, 0 at first, whether no more samples come, and its
            settings.
        same: whether each pass of the source makes the same samples.
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
    """Require that another subset has a sample that `keep` keeps; reads until one is found.

    Raises:
        UsageError: there is none; `problem` says so.
    """
    own, count = subset
    for number in {*range(count)} - {own}:
        with closing(source((number, count), None)) as flow:
            blocks = takewhile(lambda block: block.passes <= count, flow)
            if any(len(block) and len(keep(block)) for block in blocks):
                return
    raise UsageError(problem)


def growing(most: int) -> Iterator[int]:
    """How many samples a source yields at once: few at first, because the consumer waits."""
    count = 1
    while True:
        yield count
        count = min(2 * count, most)


class CheckpointableIterator:
    """Samples one by one, and a state between any two."""

    def __init__(
        self, dataset: "CheckpointableDataset", subset: Subset, state: Mapping[str, Any] | None
    ) -> None:
        """Start, or resume from a state, which is not changed.

        Raises:
            ConfigMismatchError: the state is of another chain or subset.
        """
        require_same(dataset, subset, state)
        self._dataset, self._subset = dataset, subset
        self._given = Input(dataset.open, subset, state)
        self._samples: Sequence[Sample] = ()
        self._at = 0
        self._failed: BaseException | None = None

    def __iter__(self) -> "CheckpointableIterator":
        return self

    def __next__(self) -> Any:
        if self._failed is not None:
            raise UsageError(
                f"This pass ended with an error ({type(self._failed).__name__}). Resume in another "
                "one: dataset.iter(it.state_dict())."
            ) from self._failed
        while self._at == len(self._samples):
            self._given.use()
            self._given.state()  # states before it go
            self._samples, self._at = (), 0
            try:
                is_more = self._given.more()
            except BaseException as error:
                self._failed = error
                raise
            if not is_more:
                self.close()
                raise StopIteration
            self._samples = self._given.rest.samples
        self._at += 1
        return self._samples[self._at - 1]

    def state_dict(self) -> dict[str, Any]:
        """The state before the next sample, as plain values: for JSON, torch.save and the like."""
        return copy.deepcopy(
            {
                "version": STATE_VERSION,
                "chain": self._dataset.described,
                "subset": list(self._subset),
                **self._given.state(self._given.used + self._at),
            }
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state, as torchdata's loader does."""
        resumed = CheckpointableIterator(self._dataset, self._subset, state_dict)
        self.close()  # a state that is refused changes nothing
        vars(self).update(vars(resumed))

    def close(self) -> None:
        """Stop what runs in the background."""
        self._given.close()

    def __enter__(self) -> "CheckpointableIterator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_same(
    dataset: "CheckpointableDataset", subset: Subset, state: Mapping[str, Any] | None
) -> None:
    """Refuse a state of another chain; None is the beginning of any.

    Raises:
        ConfigMismatchError: naming what differs.
    """
    if state is None:
        return
    if state.get("version") != STATE_VERSION or "chain" not in state:
        raise ConfigMismatchError("This is no state of a CheckpointableDataset.")
    old, new = state["chain"], dataset.described
    if old != new:
        raise ConfigMismatchError(
            f"The state is of the chain `{old}`, this one is `{new}`. Resume with the same steps, "
            "settings and files, which a hash of their names, sizes and contents stands for."
        )
    if tuple(state["subset"]) != subset:
        number, workers = state["subset"]
        raise ConfigMismatchError(
            f"The state is of worker {number} of {workers}, this is worker {subset[0]} of "
            f"{subset[1]}: each has other samples. Resume with num_workers={workers}."
        )
