"""Sources of samples: a sequence, an iterable, a cache, and datasets repeated or combined."""

import random
from collections.abc import MutableMapping, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import UsageError
from streaming_ext.transforms.block import Block, State
from streaming_ext.transforms.flow import (
    Flow,
    Input,
    Open,
    Step,
    Subset,
    block_sizes,
    require_others,
    take_in_turns,
)

_MOST = 1024  # samples at once; they are made before they are used


def one_pass(
    subset: Subset,
    state: State,
    epoch: int = 0,
    *,
    samples: Any,
    numbered: bool = False,
    seed: int | None = None,
) -> Flow:
    """Read samples of an iterable that yields the same ones each time, or of a sequence by number.

        a sequence of 4 samples, workers 0 and 1 of 3; samples are counted through all passes
        worker 0 has 0 and 3 of pass 0 and sample 2 of pass 1, which is number 6 of all
        worker 1 has 1 of pass 0 and samples 0 and 3 of pass 1, numbers 4 and 7

    Args:
        subset: the subset of the samples: worker 1 of 3 has 1, 4, 7, ...
        state: the number of samples passed, other workers' included; a resume skips them.
        epoch: the number of the pass.
        samples: the samples of a pass.
        numbered: true for a sequence, of which only the worker's own samples are read.
        seed: the seed of the order of a sequence in each epoch; None for its own order.
    """
    (number, workers), passed = subset, state or 0
    items = permuted(len(samples), seed, epoch) if numbered else samples
    size = len(samples) if numbered else 1
    left = iter(items)
    if left is items:
        raise UsageError(
            "from_iterable() needs something that can be iterated over again, such as a list "
            "or an object with __iter__; an iterator is used up by reading it."
        )
    if sum(1 for _ in islice(left, passed)) < passed:
        raise UsageError(f"A state names sample {passed}, and there are fewer.")
    for most in block_sizes(_MOST):
        some = list(islice(left, most))
        if not some:
            return
        own = some[(number - epoch * size - passed) % workers :: workers]
        passed += len(some)
        yield Block([samples[one] for one in own] if numbered else own).copied().at(passed)


def permuted(size: int, seed: int | None, epoch: int) -> Sequence[int]:
    """Permute range(size) for an epoch; the first is as `random.Random(seed).shuffle` makes it."""
    if seed is None:
        return range(size)
    order = list(range(size))
    random.Random(f"{seed} {epoch}" if epoch else seed).shuffle(order)  # noqa: S311
    return order


def repeat(
    subset: Subset, state: State, *, source: Step, times: int | None = None, numbered: bool = True
) -> Flow:
    """Read pass after pass of a source.

    Args:
        subset: the subset of the samples.
        state: the state of this flow.
        source: a function that opens the flow of a pass.
        times: the number of passes; None for no end.
        numbered: true for a source that takes the number of the pass, and gives a worker other
            samples in each pass.
    """
    at = state or {"epoch": 0, "source": None, "filled": -1}
    epoch, begin, filled = at["epoch"], at["source"], at["filled"]
    while epoch != times:
        for block in source(subset, begin, *[epoch] * numbered):
            filled = epoch if len(block) else filled  # the newest pass with a sample
            saved = {"epoch": epoch, "source": block.state, "filled": filled}
            yield block.at(saved, epoch if times is None else 0)
        if epoch - filled >= (subset[1] if numbered else 1):  # this worker has no sample
            if times is None:
                problem = "A dataset without a sample cannot repeat: it would never end."
                require_others(source, subset, problem)
            return
        epoch, begin = epoch + 1, None


def cache(
    subset: Subset,
    state: State,
    *,
    source: Open,
    kept: MutableMapping[Subset, list[Block]],
) -> Flow:
    """Read blocks from a dictionary, by subset, once a pass has filled it."""
    known = kept.get(subset) if state is None else None  # a resume reads the source
    blocks = []
    for block in known or source(subset, state and state["source"]):
        blocks.append(block)
        yield block.copied().at({"source": block.state})  # users may change samples
    if state is None:
        kept[subset] = blocks


def turns(weights: Sequence[float], count: int) -> Ints:
    """Choose the source of each turn, so that each is always as near to its weight as possible.

    weights 1.5 and 1: each turn adds 0.6 and 0.4 to what is due, and takes 1 from the chosen
    due before it is taken: 0.6 0.4, 0.2 0.8, 0.8 0.2, 0.4 0.6, 1.0 0.0
    chosen: 0 1 0 1 0, and again
    """
    gains = np.array(weights) / sum(weights)
    due = np.zeros(len(gains))
    found = np.empty(count, np.int64)
    for turn in range(count):
        due += gains
        found[turn] = chosen = due.argmax()
        due[chosen] -= 1.0
    return found


def interleave(
    subset: Subset, state: State, *, sources: Sequence[Open], weights: Sequence[float], cycle: int
) -> Flow:
    """Take a sample of the source whose turn it is, until that source has ended."""
    order = turns(weights, cycle)
    at = state or {"turn": 0, "sources": [None] * len(sources)}
    turn = at["turn"]
    with ExitStack() as stack:
        inputs = [
            stack.enter_context(Input(source, subset, begin))
            for source, begin in zip(sources, at["sources"], strict=True)
        ]
        for count in block_sizes(_MOST):
            if turn is None:
                return
            chosen = order[(turn + np.arange(count)) % cycle]
            for source, given in enumerate(inputs):
                own = np.flatnonzero(chosen == source)
                given.has(len(own))
                # The first turn whose source has no sample left ends the flow.
                chosen = chosen[: min([len(chosen), *own[given.have :]])]
            turn = turn + count if len(chosen) == count else None
            block = take_in_turns(inputs, chosen)
            saved = {"turn": turn, "sources": [given.state() for given in inputs]}
            yield block.at(saved, min(given.passes for given in inputs))


def concatenate(subset: Subset, state: State, *, sources: Sequence[Open]) -> Flow:
    """Read sources one after another."""
    at = state or {"number": 0, "source": None}
    first, begin = at["number"], at["source"]
    for number, source in enumerate(sources[first:], first):
        for block in source(subset, begin):
            yield block.at({"number": number, "source": block.state})
        begin = None
