"""`shuffle`: a buffer of samples of which a random one is taken, and the next one put in its place.

Which sample is given when is arithmetic on numbers alone. The buffer has slots. Once they are full,
draw t takes the sample of a random slot and puts sample `slots + t` there. With 3 slots, and slots
1, 0, 1, 1 drawn:

    in the buffer  0 1 2 | 0 3 2 | 4 3 2 | 4 5 2 | ...
    given            1       0       3       5
    instead          3       4       5       6

So what lies in a slot is known from the draws alone: the sample put there by the last draw of it. A
state does not hold the buffer: its samples are read again, from the oldest one on.
"""

import numpy as np
import numpy.typing as npt

from streaming_ext.base.errors import UsageError
from streaming_ext.transforms.block import Numbers, State, concat
from streaming_ext.transforms.flow import Flow, Input

_WORDS = 4  # that Philox gives a step of its counter


def words(seed: int, stream: int, start: int, count: int) -> npt.NDArray[np.uint64]:
    """The random words [start, start + count) of a stream, uint64: any of them without the rest."""
    step, skip = divmod(start, _WORDS)
    made = np.random.Philox(key=[seed % 2**64, stream]).advance(step).random_raw(skip + count)
    return np.asarray(made[skip:], np.uint64)


def slots_drawn(seed: int, slots: int, start: int, count: int) -> Numbers:
    """The slots that the draws [start, start + count) take."""
    return (words(seed, 0, start, count) % np.uint64(slots)).astype(np.int64)


def exchanged(held: Numbers, drawn: Numbers, first: int) -> tuple[Numbers, Numbers]:
    """What some draws give, and what lies in the slots afterwards.

    Args:
        held: the number of the sample in each slot: (slots,).
        drawn: slot of each draw: (draws,).
        first: number of the sample that the first draw puts into its slot.
    """
    order = np.argsort(drawn, kind="stable")
    slots, put = drawn[order], first + order
    # Of the draws of one slot, each gives what the one before put there.
    again = np.append(False, slots[1:] == slots[:-1])[: len(drawn)]
    given = np.empty_like(drawn)
    given[order] = np.where(again, np.roll(put, 1), held[slots])
    left = held.copy()
    left[slots] = put  # the last one of a slot stays: it stands last
    return given, left


def held_after(seed: int, slots: int, draws: int, start: int) -> Numbers:
    """The number of the sample in each slot after so many draws.

    Args:
        seed: of the draws.
        slots: of the buffer.
        draws: made so far.
        start: a draw; slots that none from there on took hold what they held at the beginning.
    """
    held = np.arange(slots, dtype=np.int64)
    held[slots_drawn(seed, slots, start, draws - start)] = slots + np.arange(start, draws)
    return held


def last_order(seed: int, count: int) -> Numbers:
    """The order in which the slots that are left at the end are emptied."""
    return np.argsort(words(seed, 1, 0, count), kind="stable").astype(np.int64)


def shuffled(given: Input, state: State | None, *, slots: int, seed: int) -> Flow:
    """Samples in an order that is random within about the length of a buffer, or a few times it.

    Args:
        given: the samples, numbered from the first one of the pass on.
        state: a place of this flow: `first`, the number of the sample that the source gives first,
            and `drawn`, the draws before; None at the end.
        slots: of the buffer.
        seed: of the draws; each worker draws otherwise.
    """
    seed += given.opening.share[0] << 32
    first, drawn = (0, 0) if state is None else (int(state["first"]), state["drawn"])
    with given:
        if drawn is None:
            return
        behind = first - given.used  # from a number of `given` to one of the pass
        held = held_after(seed, slots, drawn, max(0, first - slots))
        pool = given.exactly(slots + drawn - first)  # samples in the buffer, and some that were
        numbers = first + np.arange(len(pool))  # of those: ascending
        if len(pool) < slots + drawn - first:
            if drawn:
                raise UsageError("A state names more samples than there are: the data changed.")
            held = held[: len(pool)]
        while given.have or given.more():
            block = given.use()
            if not len(block):
                continue
            pool = concat([pool, block])
            numbers = np.append(numbers, slots + drawn + np.arange(len(block)))
            each = slots_drawn(seed, slots, drawn, len(block))
            chosen, held = exchanged(held, each, slots + drawn)
            drawn += len(block)
            made = pool.gather(np.searchsorted(numbers, chosen))
            if len(numbers) > 2 * slots:  # leave out what is not in the buffer any more
                kept = np.flatnonzero(np.isin(numbers, held))
                pool, numbers = pool.gather(kept), numbers[kept]
            oldest = int(held.min())
            yield made.at({**given.place(oldest - behind), "first": oldest, "drawn": drawn})
        order = held[last_order(seed, len(held))]
        made = pool.gather(np.searchsorted(numbers, order))
        yield made.at({**given.place(), "first": slots + drawn, "drawn": None})
