"""A chain at work: blocks of samples, and where it stands between two of them.

States are positions, never contents: who opens a flow at one gets the same samples again. Where a
step holds samples back, it names the place in its source from which on they come, and how many of
them were used already.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

from streaming_ext.errors import UsageError
from streaming_ext.transforms.block import Block, concat

State = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What a flow is opened for.

    Attributes:
        share: number of a worker and how many there are; each has samples of its own.
        columns: that are asked for, None for all.
        text: the only one of them, where it is a text; None else.
    """

    share: tuple[int, int] = (0, 1)
    columns: frozenset[str] | None = None
    text: str | None = None

    def asking(self, columns: Iterable[str] | None) -> "Opening":
        """The same, of other columns."""
        return replace(self, columns=None if columns is None else frozenset(columns), text=None)

    def asking_text(self, column: str) -> "Opening":
        """The same, of one column that holds texts."""
        return replace(self, columns=frozenset({column}), text=column)


class Passes(NamedTuple):
    """Whole passes of a source that begins anew for ever, up to the sample that was given last.

    Attributes:
        least: so many ended.
        most: no more did.
    """

    least: int
    most: int


class Flow(ABC):
    """Samples of one pass through a step of a chain."""

    @abstractmethod
    def pull(self, most: int) -> Block | None:
        """The next samples, about so many at most, perhaps none; None at the end, and from then on.

        Where a block ends is free: only the samples and their order are not.
        """

    @abstractmethod
    def state(self) -> State:
        """Where the next samples begin."""

    @abstractmethod
    def close(self) -> None:
        """Stop what runs in the background."""

    def passes(self) -> Passes:
        """After which the same samples come again; none where they end, or where nobody knows."""
        return Passes(0, 0)


class Through(Flow):
    """A step of single samples that holds nothing back: it stands where its source does."""

    def __init__(self, source: Flow) -> None:
        self.source = source

    def state(self) -> State:
        return self.source.state()

    def close(self) -> None:
        self.source.close()

    def passes(self) -> Passes:
        return self.source.passes()


class Taken:
    """A flow of which just so many samples can be taken, whatever its blocks are.

    The state names the beginning of the block in hand, and how many of its samples were taken. When
    the next block fails, some of its samples may be used up on the way, so none is taken behind it,
    and the state stays where it was.
    """

    def __init__(self, source: Flow, skip: int = 0) -> None:
        """Begin with the first sample, or behind some that were taken before."""
        self._source = source
        self._before, self._block, self._at = source.state(), Block(samples=[]), 0
        self._passes = source.passes()  # before the block in hand
        self._failed: BaseException | None = None
        while skip:
            if not self._fill(skip):
                raise UsageError("A state names more samples than there are: the data changed.")
            self._at = min(skip, len(self._block))
            skip -= self._at

    def _fill(self, most: int) -> bool:
        """Have a sample that was not taken, unless there is none any more."""
        if self._failed is not None:
            raise UsageError(
                f"This pass ended with an error ({type(self._failed).__name__}), and goes on in "
                "another one only: dataset.iter(it.state_dict())."
            ) from self._failed
        while self._at == len(self._block):
            self._before, self._passes = self._source.state(), self._source.passes()
            self._block, self._at = Block(samples=[]), 0
            try:
                block = self._source.pull(most)
            except BaseException as error:
                self._failed = error
                raise
            if block is None:
                return False
            self._block = block
        return True

    def some(self, most: int) -> Block | None:
        """The next samples, at most so many, at least one; None at the end."""
        if not self._fill(most):
            return None
        start = self._at
        self._at = min(start + most, len(self._block))
        return self._block.slice(start, self._at)

    def exactly(self, count: int) -> Block | None:
        """The next samples; fewer at the end, None behind it."""
        blocks = []
        while count and (block := self.some(count)) is not None:
            blocks.append(block)
            count -= len(block)
        return concat(blocks) if blocks else None

    def state(self, unread: int = 0) -> State:
        """See `Flow.state`; before the last so many of the samples that were taken from a block."""
        if self._at == len(self._block) and not unread and self._failed is None:
            return {"source": self._source.state(), "skip": 0}
        return {"source": self._before, "skip": self._at - unread}

    def close(self) -> None:
        """See `Flow.close`."""
        self._source.close()

    def passes(self) -> Passes:
        """See `Flow.passes`."""
        return Passes(self._passes.least, self._source.passes().most)


class Source(Protocol):
    """A dataset that can be opened."""

    def open(self, opening: Opening, state: State | None) -> Flow:
        """A pass through it, from the beginning or from a place that a state names."""
        ...


def inner(state: State | None, name: str = "source") -> Any:
    """Of a state, that of the source; None at the beginning."""
    return None if state is None else state[name]


@runtime_checkable
class Rendered(Protocol):
    """Something in a state whose value is known only when the state is asked for."""

    def plain(self) -> Any:
        """Its value by now."""
        ...


def plain(state: Any) -> Any:
    """A copy of a state as plain values."""
    if state is None or isinstance(state, int | str | float):  # most are: the others cost more
        return state
    if isinstance(state, Mapping):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [plain(value) for value in state]
    return plain(state.plain()) if isinstance(state, Rendered) else state
