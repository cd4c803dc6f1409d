"""A chain at work: blocks of samples flow through steps, each with the place behind it.

A place says where a source is read again: {"source": a place of the source's own source, "skip":
samples from there on that were used}. So a state is small whatever a step holds back, and who opens
a flow at one gets the same samples again.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from streaming_ext.base.errors import UsageError
from streaming_ext.transforms.block import Block, State, concat

_log = logging.getLogger(__name__)
MANY: Final = 100_000  # samples left out in a row, of which there is a warning
Flow: TypeAlias = Generator[Block, None, None]
OfBlock: TypeAlias = Callable[[Block], Block]
Made: TypeAlias = tuple[Block, int | None]
# Makes a block of the samples that came, and uses up some of them. It is handed its count, 0 at
# first, and whether no more come; it returns its count for the next time, or None at its end.
Step: TypeAlias = Callable[["Input", int, bool], Made]


@dataclass(frozen=True, slots=True)
class Opening:
    """What a flow is opened for.

    Attributes:
        share: number of a worker and how many there are; each has samples of its own.
        column: the only one that is asked for; None for all.
        text: whether that one holds texts.
    """

    share: tuple[int, int] = (0, 1)
    column: str | None = None
    text: bool = False

    def asking(self, column: str | None = None, *, text: bool = False) -> "Opening":
        """The same, of one column or of all."""
        return replace(self, column=column, text=text)


class Source(Protocol):
    """Something that can be opened, such as a dataset."""

    def open(self, opening: Opening, state: State | None) -> Flow:
        """Its blocks, from the beginning or from a place on."""
        ...


class Input:
    """Samples of a source: those that came and were not used up, and where each can be read again.

    Samples are numbered from the place on at which the source was opened.
    """

    def __init__(self, source: Source, opening: Opening, state: State | None) -> None:
        """Open a source at `state["source"]`, behind `state["skip"]` samples.

        Raises:
            ConfigMismatchError: the state is of other data.
        """
        self.source, self.opening = source, opening
        begin = None if state is None else state["source"]
        self._flow = source.open(opening, begin)
        self._places = deque([(0, begin)])
        self.used = self._skip = 0 if state is None else int(state["skip"])
        self._came = self.passes = 0  # passes: see `Block`, of the newest one
        self.size = 1  # samples of the newest block
        self._failed: BaseException | None = None
        self.pieces: deque[Block] = deque()  # of those that were not used up

    @property
    def have(self) -> int:
        """How many samples came that were not used up."""
        return sum(map(len, self.pieces))

    @property
    def rest(self) -> Block:
        """The samples that came and were not used up."""
        self.pieces = deque([concat(self.pieces)])
        return self.pieces[0]

    def more(self) -> bool:
        """Put one more block, which may be empty, behind the rest; False at the end."""
        if self._failed is not None:
            raise UsageError(
                f"This pass ended with an error ({type(self._failed).__name__}), and goes on in "
                "another one only: dataset.iter(it.state_dict())."
            ) from self._failed
        try:
            block = next(self._flow, None)
        except BaseException as error:
            self._failed = error
            raise
        if block is None:
            if self._came < self._skip:
                raise UsageError(
                    "A state names more samples than there are: the data behind it changed."
                )
            return False
        over = min(max(self._skip - self._came, 0), len(block))
        self._came += len(block)
        self.passes = block.passes
        if block.place is not None:
            self._places.append((self._came, block.place))
        self.size = max(len(block), 1)
        if over < len(block):
            self.pieces.append(block.slice(over, len(block)) if over else block)
        return True

    def use(self, count: int | None = None) -> Block:
        """Use up the first samples of the rest, by default all."""
        left, taken = self.have if count is None else count, []
        while left and self.pieces:
            piece = self.pieces.popleft()
            if len(piece) > left:
                self.pieces.appendleft(piece.slice(left, len(piece)))
                piece = piece.slice(0, left)
            taken.append(piece)
            left -= len(piece)
            self.used += len(piece)
        return concat(taken)

    def filled(self) -> bool:
        """Have a sample that was not used up; False at the end."""
        while not self.have and self.more():
            pass
        return self.have > 0

    def exactly(self, count: int) -> Block:
        """Use up so many samples; fewer at the end."""
        while self.have < count and self.more():
            pass
        return self.use(count)

    def place(self, number: int | None = None) -> dict[str, Any]:
        """Where a sample is read again, by default the first that is not used; none before it."""
        number = self.used if number is None else number
        while len(self._places) > 1 and self._places[1][0] <= number:
            self._places.popleft()
        first, begin = self._places[0]
        return {"source": begin, "skip": number - first}

    def close(self) -> None:
        """Stop what runs in the background."""
        self._flow.close()

    def __enter__(self) -> "Input":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def through(given: Input, state: State | None, *, step: Step, same: bool = False) -> Flow:
    """The blocks that a step makes; what it does not use up is there again the next time.

    Args:
        given: the samples.
        state: a place of this flow.
        step: see `Step`.
        same: whether the same samples come in each pass, where they do so in the source.
    """
    at = 0 if state is None else state["at"]
    with given:
        while at is not None:
            last = not given.more()
            made, at = step(given, at, last)
            at = None if last else at
            yield made.at({**given.place(), "at": at}, given.passes if same else 0)


def mapped(given: Input, state: State | None, *, function: OfBlock, name: str | None) -> Flow:
    """What a function makes of each block; of one that leaves samples out, with a name for it."""
    step = partial(_whole, function=function)
    return watched(through(given, state, step=step, same=True), given, function, name)


def _whole(given: Input, at: int, last: bool, *, function: OfBlock) -> Made:
    block = given.use()
    return function(block) if len(block) else block, at


def watched(flow: Flow, given: Input, function: OfBlock, name: str | None) -> Flow:
    """The blocks of a step; it may leave out every sample of a whole pass, if it has a `name`.

    A source that begins anew for ever then gives none any more. Of one that says nothing of passes
    nobody can know: there is a warning.

    Raises:
        UsageError: no worker has any other samples.
    """
    source, opening = given.source, given.opening
    since, used, warned = None, 0, False  # passes, and samples used up, when a sample came last
    with closing(flow):
        for block in flow:
            if len(block) or since is None:
                since, used, warned = block.passes, given.used, False
            if name and not warned and given.used - used >= MANY:
                warned = True
                _log.warning(
                    "%s left out the last %s samples, all that came. Where the source has no end, "
                    "none may ever come: look at what is kept.",
                    name,
                    f"{MANY:,}",
                )
            # Each pass deals the samples out to the workers anew: so many, until one has seen all.
            # One more, since sources that take turns do not end their passes together.
            if name and block.passes - since > opening.share[1] + 1:
                if others_have_any(source, opening, function):
                    return
                raise UsageError(
                    f"{name} left out every sample of a whole pass, and the source repeats them "
                    "for ever: no other one would come. Look at what is kept, or leave out repeat."
                )
            yield block


def others_have_any(source: Source, opening: Opening, keep: OfBlock = lambda block: block) -> bool:
    """Whether a worker other than this one has a sample; reads on until one is found."""
    own, workers = opening.share
    for number in {*range(workers)} - {own}:
        with closing(source.open(replace(opening, share=(number, workers)), None)) as flow:
            for block in flow:
                if block.passes > workers:
                    break
                if len(block) and len(keep(block)):
                    return True
    return False


def growing(most: int) -> Iterator[int]:
    """How many samples a source gives at once: few at first, since somebody waits for them."""
    count = 1
    while True:
        yield count
        count = min(2 * count, most)


class Rendered(Protocol):
    """Something in a state whose value is known only when the state is asked for."""

    def plain(self) -> Any:
        """Its value by now."""
        ...


def plain(state: Any) -> Any:
    """A copy of a state as plain values."""
    if isinstance(state, Mapping):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [plain(value) for value in state]
    return plain(state.plain()) if hasattr(state, "plain") else state
