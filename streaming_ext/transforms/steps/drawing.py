"""Which sample a shuffle buffer gives when: arithmetic on numbers alone.

The buffer has slots. Once they are full, draw t takes the sample of a random slot and puts sample
`slots + t` there. With 3 slots, and slots 1, 0, 1, 1 drawn:

    in the buffer  0 1 2 | 0 3 2 | 4 3 2 | 4 5 2 | ...
    given            1       0       3       5
    instead          3       4       5       6

So what lies in a slot is known from the draws alone: the sample put there by the last draw of it.
"""

import numpy as np
import numpy.typing as npt

from streaming_ext.sampler.orders.order import Ints

_WORDS = 4  # that Philox gives a step of its counter


def words(seed: int, stream: int, start: int, count: int) -> npt.NDArray[np.uint64]:
    """The random words [start, start + count) of a stream, uint64: any of them without the rest."""
    step, skip = divmod(start, _WORDS)
    made = np.random.Philox(key=[seed % 2**64, stream]).advance(step).random_raw(skip + count)
    return np.asarray(made[skip:], np.uint64)


def slots_drawn(seed: int, slots: int, start: int, count: int) -> Ints:
    """The slots that the draws [start, start + count) take."""
    drawn: Ints = (words(seed, 0, start, count) % np.uint64(slots)).astype(np.int64)
    return drawn


def exchanged(held: Ints, drawn: Ints, first: int) -> tuple[Ints, Ints]:
    """What some draws give, and what lies in the slots afterwards.

    Args:
        held: the number of the sample in each slot: (slots,).
        drawn: slot of each draw: (draws,).
        first: number of the sample that the first draw puts into its slot.
    """
    order = np.argsort(drawn, kind="stable")
    slots = drawn[order]
    put = first + order
    # Of the draws of one slot, each gives what the one before put there.
    again = np.zeros(len(drawn), bool)
    again[1:] = slots[1:] == slots[:-1]
    given = np.empty_like(drawn)
    before = np.empty_like(drawn)
    before[1:] = put[:-1]
    given[order] = np.where(again, before, held[slots])
    left = held.copy()
    left[slots] = put  # the last one of a slot stays: it stands last
    return given, left


def held_after(seed: int, slots: int, draws: int, start: int) -> Ints:
    """The number of the sample in each slot after so many draws.

    Args:
        seed: of the draws.
        slots: of the buffer.
        draws: made so far.
        start: a draw; slots that none from there on took hold what they held at the beginning.
    """
    drawn = slots_drawn(seed, slots, start, draws - start)
    held = np.arange(slots, dtype=np.int64)
    held[drawn] = slots + np.arange(start, draws)
    return held


def last_order(seed: int, count: int) -> Ints:
    """The order in which the slots that are left at the end are emptied."""
    return np.argsort(words(seed, 1, 0, count), kind="stable").astype(np.int64)
