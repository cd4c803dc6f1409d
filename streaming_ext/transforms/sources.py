"""Where samples come from: a sequence, an iterable, a cache, datasets again or several together."""

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.transforms.block import Block, Numbers, Sample, State, concat
from streaming_ext.transforms.flow import (
    Flow,
    Input,
    Opening,
    Source,
    growing,
    others_have_any,
    plain,
)

_MOST = 1024  # samples at once: they are made ahead of their use


def sequence_flow(
    opening: Opening,
    state: State | None,
    *,
    sequence: Sequence[Sample],
    repeat: bool,
    seed: int | None,
) -> Flow:
    """Samples by their number, counted through all epochs: worker 1 of 3 has 1, 4, 7, ..."""
    size, (first, step) = len(sequence), opening.share
    number = first if state is None else int(state["next"])
    if repeat and not size:
        raise _endless("from_sequence")
    order: Sequence[int] = ()
    known = -1
    for most in growing(_MOST):
        if number >= size and not repeat:
            return
        epoch, start = divmod(number, size)
        if epoch != known:
            known, order = epoch, range(size) if seed is None else permuted(size, seed, epoch)
        samples = [sequence[one] for one in order[start : start + most * step : step]]
        number += len(samples) * step
        yield Block(samples).copied().at({"next": number}, epoch)


def iterable_flow(
    opening: Opening, state: State | None, *, iterable: Iterable[Sample], repeat: bool
) -> Flow:
    """Samples of an iterable that gives the same ones each time; a resume walks through it."""
    first, step = opening.share
    read, before = (0, 0) if state is None else (int(state["read"]), int(state["before"]))
    passes, left = 0, _begun(iterable, read)
    for most in growing(_MOST):
        samples = list(islice(left, most))
        if not samples:
            if not repeat:
                return
            if not read:
                raise _endless("from_iterable")
            passes, before, read, left = passes + 1, before + read, 0, _begun(iterable, 0)
        own = samples[(first - before - read) % step :: step]
        read += len(samples)
        yield Block(own).copied().at({"read": read, "before": before}, passes)


def _begun(iterable: Iterable[Sample], skip: int) -> Iterator[Sample]:
    left = iter(iterable)
    if left is iterable:
        raise UsageError(
            "from_iterable() takes something that can be iterated over again, such as a list "
            "or an object with __iter__; an iterator is used up by reading it."
        )
    passed = sum(1 for _ in islice(left, skip))
    if passed < skip:
        raise UsageError(f"A state names sample {skip}; the iterable has {passed}.")
    return left


def _endless(source: str) -> UsageError:
    return UsageError(f"{source}(repeat=True) without a sample never ends.")


def permuted(size: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch; the first one's is that of `random.Random(seed).shuffle`."""
    order = list(range(size))
    random.Random(f"{seed} {epoch}" if epoch else seed).shuffle(order)  # noqa: S311
    return order


def repeated(opening: Opening, state: State | None, *, source: Source, times: int | None) -> Flow:
    """The same samples again and again."""
    done, some = (0, False) if state is None else (int(state["done"]), bool(state["any"]))
    flow = source.open(opening, state and state["source"])
    while True:
        for block in flow:
            some = some or len(block) > 0
            place = {"source": block.place, "done": done, "any": some}
            yield block.at(place, done if times is None else 0)
        done += 1
        if done == times:
            return
        if not some:  # a worker without a sample is at its end
            if times is None and not others_have_any(source, opening):
                raise UsageError("repeat() of a dataset without a sample would never end.")
            return
        some, flow = False, source.open(opening, None)


@dataclass(slots=True)
class Kept:
    """What this process read of a dataset so far, from its beginning; these are all if `ended`."""

    blocks: list[Block] = field(default_factory=list)
    ended: bool = False


class Shelf(dict[tuple[int, ...], Kept]):
    """What is kept of a dataset, by process and share; nothing of it goes to another process."""

    def of(self, opening: Opening) -> Kept:
        """What is kept here."""
        return self.setdefault((os.getpid(), *opening.share), Kept())

    def __reduce__(self) -> tuple[type["Shelf"], tuple[()]]:
        return Shelf, ()


def cached(opening: Opening, state: State | None, *, source: Source, shelf: Shelf) -> Flow:
    """Blocks that are kept, then those of the source; a resume elsewhere reads the source."""
    kept, begin = shelf.of(opening), state and state["source"]
    ends = (number for number, block in enumerate(kept.blocks, 1) if plain(block.place) == begin)
    number, stands = next(ends, 0), -1
    if begin is not None and not number:
        for block in source.open(opening, begin):
            yield block.at({"source": block.place})
        return
    flow: Iterator[Block] = iter(())
    while not kept.ended or number < len(kept.blocks):
        if number < len(kept.blocks):
            block, number = kept.blocks[number], number + 1
            yield block.copied().at({"source": block.place})  # users may change samples
            continue
        if stands != number:  # perhaps another pass read on from where this one stood
            flow = source.open(opening, plain(kept.blocks[-1].place if number else None))
        kept.blocks += islice(flow, 1)
        kept.ended, stands = number == len(kept.blocks), number + 1


def turns(weights: Sequence[float], count: int) -> Numbers:
    """Whose turn it is, `count` times: each source is at any time as near to its weight as can be.

    With the weights 1.5 and 1: 0 1 0 1 0, and again.
    """
    gains = [weight / sum(weights) for weight in weights]
    due = [0.0] * len(gains)
    found = np.empty(count, np.int64)
    for turn in range(count):
        due = [have + gain for have, gain in zip(due, gains, strict=True)]
        chosen = due.index(max(due))
        due[chosen] -= 1.0
        found[turn] = chosen
    return found


def interleaved(
    opening: Opening,
    state: State | None,
    *,
    sources: Sequence[Source],
    weights: Sequence[float],
    cycle: int,
) -> Flow:
    """A sample of the source whose turn it is, until one is at its end."""
    order = turns(weights, cycle)
    turn, places = (
        (0, [None] * len(sources)) if state is None else (state["turn"], state["sources"])
    )
    with ExitStack() as stack:
        inputs = [
            stack.enter_context(Input(source, opening, place))
            for source, place in zip(sources, places, strict=True)
        ]
        for count in growing(_MOST):
            if turn is None:
                return
            chosen = order[(turn + np.arange(count)) % cycle]
            wanted = np.bincount(chosen, minlength=len(sources)).tolist()
            got = [given.exactly(number) for given, number in zip(inputs, wanted, strict=True)]
            have = np.array([len(block) for block in got])
            rank = np.empty(count, np.int64)  # of each turn among those of its source
            for number, size in enumerate(wanted):
                rank[chosen == number] = np.arange(size)
            # The first turn whose source has no sample any more is the end.
            without = np.flatnonzero(rank >= have[chosen])
            turn = None if len(without) else turn + count
            starts = np.cumsum(have) - have
            numbers = (starts[chosen] + rank)[: without[0] if len(without) else count]
            place = {"turn": turn, "sources": [given.place() for given in inputs]}
            passes = min(given.passes for given in inputs)
            yield concat(got).gather(numbers).at(place, passes)


def concatenated(opening: Opening, state: State | None, *, sources: Sequence[Source]) -> Flow:
    """One source behind the other."""
    begin, place = (0, None) if state is None else (int(state["number"]), state["source"])
    for number in range(begin, len(sources)):
        for block in sources[number].open(opening, place):
            yield block.at({"number": number, "source": block.place})
        place = None
