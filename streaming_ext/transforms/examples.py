"""Samples of a sequence or of an iterable, as sources of a chain."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from streaming_ext.errors import UsageError
from streaming_ext.transforms.block import Block, Sample
from streaming_ext.transforms.copies import copied
from streaming_ext.transforms.flow import Flow, Opening, Passes, State

_MOST = 1024  # samples at once: they are made ahead of their use


class SequenceFlow(Flow):
    """Samples by their number, counted through all epochs: worker 1 of 3 has 1, 4, 7, ..."""

    def __init__(
        self, sequence: Sequence[Sample], opening: Opening, state: State | None,
        *, repeat: bool, seed: int | None,
    ) -> None:  # fmt: skip
        self._sequence, self._repeat, self._seed = sequence, repeat, seed
        self._handed = _handed(opening)
        if repeat and not len(sequence):
            raise _endless("from_sequence")
        first, self._step = opening.share
        self._next = first if state is None else int(state["next"])
        self._epoch, self._order = -1, self._order_of(0, 0)

    def pull(self, most: int) -> Block | None:
        size = len(self._sequence)
        if not size or (self._next >= size and not self._repeat):
            return None
        epoch, start = divmod(self._next, size)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._order_of(epoch, size)
        numbers = self._order[start : start + min(most, _MOST) * self._step : self._step]
        self._next += len(numbers) * self._step
        return Block(samples=self._handed([self._sequence[number] for number in numbers]))

    def _order_of(self, epoch: int, size: int) -> Sequence[int]:
        return range(size) if self._seed is None else permuted(size, self._seed, epoch)

    def state(self) -> State:
        return {"next": self._next}

    def close(self) -> None:
        pass

    def passes(self) -> Passes:
        ended = self._next // len(self._sequence) if self._repeat else 0
        return Passes(ended, ended)


def _handed(opening: Opening) -> Callable[[list[Sample]], list[Sample]]:
    """What is done to samples that are handed on: a step that asks for columns only reads them."""
    return copied if opening.columns is None else list


def _endless(source: str) -> UsageError:
    return UsageError(f"{source}(repeat=True) without a sample never ends.")


def permuted(size: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch; the first one's is that of `random.Random(seed).shuffle`."""
    order = list(range(size))
    random.Random(f"{seed} {epoch}" if epoch else seed).shuffle(order)  # noqa: S311
    return order


class IterableFlow(Flow):
    """Samples of an iterable that gives the same ones each time; a resume walks through it."""

    def __init__(
        self, iterable: Iterable[Sample], opening: Opening, state: State | None, *, repeat: bool
    ) -> None:
        self._iterable, self._repeat = iterable, repeat
        self._handed = _handed(opening)
        self._first, self._step = opening.share
        self._read = 0 if state is None else int(state["read"])  # of this epoch
        self._before = 0 if state is None else int(state["before"])  # in the epochs before
        self._left = self._begin(self._read)
        self._passes = 0  # that ended since

    def _begin(self, skip: int) -> Iterator[Sample]:
        left = iter(self._iterable)
        if left is self._iterable:
            raise UsageError(
                "from_iterable() takes something that can be iterated over again, such as a list "
                "or an object with __iter__; an iterator is used up by reading it."
            )
        passed = sum(1 for _ in islice(left, skip))
        if passed < skip:
            raise UsageError(f"A state names sample {skip}; the iterable has {passed}.")
        return left

    def pull(self, most: int) -> Block | None:
        samples = list(islice(self._left, min(most, _MOST)))
        if not samples:
            if not self._repeat:
                return None
            if not self._read:
                raise _endless("from_iterable")
            self._before += self._read
            self._read = 0
            self._passes += 1
            self._left = self._begin(0)
            return Block(samples=[])
        offset = (self._first - self._before - self._read) % self._step
        self._read += len(samples)
        return Block(samples=self._handed(samples[offset :: self._step]))

    def state(self) -> State:
        return {"read": self._read, "before": self._before}

    def close(self) -> None:
        pass

    def passes(self) -> Passes:
        return Passes(self._passes, self._passes)


def open_sequence(
    opening: Opening,
    state: State | None,
    *,
    sequence: Sequence[Sample],
    repeat: bool,
    seed: int | None,
) -> Flow:
    """`from_sequence`."""
    return SequenceFlow(sequence, opening, state, repeat=repeat, seed=seed)


def open_iterable(
    opening: Opening, state: State | None, *, iterable: Iterable[Sample], repeat: bool
) -> Flow:
    """`from_iterable`."""
    return IterableFlow(iterable, opening, state, repeat=repeat)
