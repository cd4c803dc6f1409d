"""`shuffle`: a buffer, out of which a random sample is taken and replaced by the next one.

Which sample comes when is arithmetic on numbers alone. Once the buffer's slots are full, draw t
takes the sample of a random slot and puts sample `slots + t` there. With 3 slots, and the slots
1, 0, 1, 1 drawn:

    in the buffer  0 1 2 | 0 3 2 | 4 3 2 | 4 5 2 | ...
    taken            1       0       3       5
    put              3       4       5       6

So the draws tell what each slot holds: the sample that the last draw of it put there. A state does
not hold the buffer: its samples are read again, from the oldest one on.
"""

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import UsageError
from streaming_ext.transforms.block import State, concat
from streaming_ext.transforms.flow import Flow, Input, Source, Subset

_WORDS = 4  # of each step of Philox's counter


def words(seed: int, stream: int, start: int, count: int) -> npt.NDArray[np.uint64]:
    """The random words [start, start + count) of a stream, uint64: any of them without the rest."""
    step, skip = divmod(start, _WORDS)
    made = np.random.Philox(key=[seed % 2**64, stream]).advance(step).random_raw(skip + count)
    return np.asarray(made[skip:], np.uint64)


def slots_drawn(seed: int, slots: int, start: int, count: int) -> Ints:
    """The slots that the draws [start, start + count) take."""
    return (words(seed, 0, start, count) % np.uint64(slots)).astype(np.int64)


def last_order(seed: int, count: int) -> Ints:
    """The order in which the slots are emptied at the end."""
    return np.argsort(words(seed, 1, 0, count), kind="stable").astype(np.int64)


def shuffled(subset: Subset, state: State, *, source: Source, slots: int, seed: int) -> Flow:
    """Samples in an order that is random within about the length of the buffer.

    Args:
        subset: of the samples.
        state: of this flow: `first`, the number of the sample that the source yields first, and
            `drawn`, the draws before; None at the end.
        source: of the samples.
        slots: of the buffer.
        seed: of the draws; each worker draws others.
    """
    seed += subset[0] << 32
    first, drawn = (0, 0) if state is None else (state["first"], state["drawn"])
    with Input(source, subset, state) as given:
        if drawn is None:
            return
        offset = first - given.used  # from a number of `given` to one of the pass
        pool = given.exactly(slots + drawn - first)  # samples in the buffer, and some that were
        if drawn and len(pool) < slots + drawn - first:
            raise UsageError("A state names more samples than there are: the data changed.")
        numbers = first + np.arange(len(pool))  # of the samples in `pool`, ascending
        # held: number of the sample in each slot. Slots that no draw since the oldest sample took
        # hold what they held at the beginning.
        held = np.arange(min(slots, len(pool) + first))
        since = max(0, first - slots)
        held[slots_drawn(seed, slots, since, drawn - since)] = slots + np.arange(since, drawn)
        while given.have or given.more():
            block = given.use()
            taken = []
            for number, slot in enumerate(slots_drawn(seed, slots, drawn, len(block)), drawn):
                taken.append(held[slot])
                held[slot] = slots + number
            pool = concat([pool, block])
            numbers = np.append(numbers, slots + drawn + np.arange(len(block)))
            drawn += len(block)
            made = pool.take(np.searchsorted(numbers, np.array(taken, np.int64)))
            if len(numbers) > 2 * slots:  # leave out what is not in the buffer any more
                kept = np.flatnonzero(np.isin(numbers, held))
                pool, numbers = pool.take(kept), numbers[kept]
            oldest = int(held.min(initial=drawn + slots))
            yield made.at({**given.state(oldest - offset), "first": oldest, "drawn": drawn})
        order = held[last_order(seed, len(held))]
        made = pool.take(np.searchsorted(numbers, order))
        yield made.at({**given.state(), "first": slots + drawn, "drawn": None})
