"""Steps that make rows of tokens, and steps that choose or batch samples.

For the samples 0..9, 10 11 12 and 20..26, in rows of 6:

    chunk           0 1 2 3 4 5    20 21 22 23 24 25
    concat_chunk    0 1 2 3 4 5    6 7 8 9 10 11    12 20 21 22 23 24
    pack_chunk      0 1 2 3 4 5    10 11 12    20 21 22 23 24 25
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch.utils.data import default_collate

from streaming_ext.base.arrays import Ints, ceil_div, ranges
from streaming_ext.base.errors import UsageError
from streaming_ext.transforms.block import (
    Block,
    Column,
    Sample,
    State,
    as_matrix,
    concat,
    flat,
    lengths_of,
    rows_of,
    tokens_of,
)
from streaming_ext.transforms.flow import Flow, Input, Made, Open, Subset, step

_WORDS = 4  # per step of Philox's counter
Collate: TypeAlias = Callable[[Sequence[Sample]], Any]


@step
def take(given: Input, at: int, last: bool, *, count: int) -> Made:
    """Keep the first `count` samples; worker 0 of 2 takes 3 of 5, worker 1 takes 2."""
    number, workers = given.subset
    own = count // workers + (number < count % workers)
    made = given.use().slice(0, own - at)
    at += len(made)
    return made, at if at < own else None


@step
def stride(given: Input, at: int, last: bool, *, interval: int, offset: int) -> Made:
    """Keep one sample per interval: interval 3 and offset 1 keep the samples 1, 4, 7, ..."""
    block = given.use()
    chosen = np.arange((offset - at) % interval, len(block), interval)
    return block.take(chosen), (at + len(block)) % interval


@partial(step, same=True)
def enumerated(given: Input, at: int, last: bool, *, column: str) -> Made:
    """Number the samples; worker 1 of 3 gives the numbers 1, 4, 7, ..."""
    (number, workers), block = given.subset, given.use()
    numbers = pa.array(number + workers * np.arange(at, at + len(block)))
    return block.with_columns({column: numbers}), at + len(block)


@step
def batch(
    given: Input, at: int, last: bool, *, size: int, drop_last: bool, collate: Collate
) -> Made:
    """Join samples in groups; the last group may be smaller."""
    block = given.use(given.have if last and not drop_last else given.have // size * size)
    starts = range(0, len(block), size)
    found = {name: as_matrix(column) for name, column in block.columns.items()}
    rows = {name: values for name, values in found.items() if values is not None}
    if collate is default_collate and block.rows is None and len(rows) == len(found):
        # Each tensor has its own memory: a batch may be kept, sent or saved alone.
        made = [
            {name: torch.from_numpy(rows[name][n : n + size].astype(np.int64)) for name in rows}
            for n in starts
        ]
        return Block(made), at
    return Block([collate(list(block.samples[n : n + size])) for n in starts]), at


def _columns(block: Block, names: Sequence[str]) -> tuple[dict[str, Column], Ints]:
    """Return some columns of tokens, and the length that they all have in each sample.

    Raises:
        UsageError: the lengths of the columns differ.
    """
    found = {name: block.tokens(name) for name in names}
    lengths, *others = map(lengths_of, found.values())
    if not all(np.array_equal(each, lengths) for each in others):
        raise UsageError(f"The columns {', '.join(map(repr, names))} must have equal lengths.")
    return found, lengths


def _rows(columns: Mapping[str, Column], starts: Ints, lengths: Ints) -> Block:
    """Cut rows out of the tokens of all samples, by their starts and lengths."""
    chosen = ranges(starts, lengths)
    return Block(
        columns={name: tokens_of(flat(each)[chosen], lengths) for name, each in columns.items()}
    )


def chunk(block: Block, *, length: int, names: Sequence[str], drop_rest: bool) -> Block:
    """Cut each sample into rows; a shorter rest is left out if `drop_rest`."""
    columns, lengths = _columns(block, names)
    counts = lengths // length if drop_rest else ceil_div(lengths, length)
    # before: (rows,), tokens of the sample before each row; row_lengths: (rows,)
    before = ranges(np.zeros_like(counts), counts) * length
    row_lengths = np.minimum(np.repeat(lengths, counts) - before, length)
    return _rows(columns, np.repeat(np.cumsum(lengths) - lengths, counts) + before, row_lengths)


def keep_usable(block: Block, *, names: Sequence[str], longest: int) -> Block:
    """Keep the samples that fit into rows: those neither empty nor too long."""
    columns, lengths = _columns(block, names)
    kept = np.flatnonzero((lengths > 0) & (lengths <= longest))
    return Block(columns=columns).take(kept)


@step
def concat_chunk(given: Input, at: int, last: bool, *, length: int, names: Sequence[str]) -> Made:
    """Cut all samples, joined end to end, into rows; a rest at the end is left out.

    The count is the number of tokens of the first sample that are used.
    """
    columns, lengths = _columns(given.rest, names)
    ends = np.append(0, np.cumsum(lengths))
    stop = at + (int(ends[-1]) - at) // length * length
    made = {
        name: rows_of(flat(each)[at:stop].reshape(-1, length)) for name, each in columns.items()
    }
    used = int(np.searchsorted(ends, stop, side="right")) - 1
    given.use(used)
    return Block(columns=made), stop - int(ends[used])


@step
def pack_chunk(given: Input, at: int, last: bool, *, length: int, names: Sequence[str]) -> Made:
    """Pack whole samples into rows; a sample longer than a row is cut."""
    columns, lengths = _columns(given.rest, names)
    firsts: list[int] = []  # the sample that each row starts with
    used = length
    for number, tokens in enumerate(lengths.tolist()):
        if used + tokens > length:
            firsts.append(number)
            used = 0
        used += tokens
    firsts.append(len(lengths))
    stops = firsts if last else firsts[:-1]  # the last row may hold more
    given.use(stops[-1])
    ends = np.append(0, np.cumsum(lengths))[stops]
    return _rows(columns, ends[:-1], np.minimum(np.diff(ends), length)), at


def pad(block: Block, *, values: Mapping[str, int], length: int) -> Block:
    """Fill columns up to one length, each with its own value."""
    made = {}
    for name, value in values.items():
        column = block.tokens(name)
        lengths = lengths_of(column)
        if lengths.max() > length:
            raise UsageError(
                f"Column {name!r} of a sample has {lengths.max()} tokens, pad() fills up to "
                f"{length}. Raise chunk_length, or cut or filter before."
            )
        # (samples, length)
        rows = np.full((len(lengths), length), value, np.int64)
        rows[np.arange(length) < lengths[:, None]] = flat(column)
        made[name] = rows_of(rows)
    return block.with_columns(made)


def insert_ends(
    values: npt.NDArray[Any], lengths: Ints, before: Sequence[int], after: Sequence[int]
) -> tuple[npt.NDArray[Any], Ints]:
    """Insert ids before and after each sample; return the tokens and their lengths."""
    ids = [*before, *after]
    if not ids:
        return values, lengths
    ends = np.cumsum(lengths)
    # (samples, start and end), then one position for each id
    bounds = np.stack([ends - lengths, ends], axis=1).reshape(-1)
    positions = np.repeat(bounds, np.tile([len(before), len(after)], len(lengths)))
    kind = np.result_type(values.dtype, np.min_scalar_type(max(ids)))
    made = np.insert(values.astype(kind), positions, np.tile(ids, len(lengths)))
    return made, lengths + len(ids)


def add_bos_eos(block: Block, *, bos: int | None, eos: int | None, column: str) -> Block:
    """Add one token before and one after the tokens of each sample; None adds nothing."""
    tokens = block.tokens(column)
    before, after = ([] if one is None else [one] for one in (bos, eos))
    made = insert_ends(flat(tokens), lengths_of(tokens), before, after)
    return block.with_columns({column: tokens_of(*made)})


def random_words(seed: int, stream: int, start: int, count: int) -> npt.NDArray[np.uint64]:
    """Draw the random words [start, start + count) of a stream, without those before."""
    counter, skip = divmod(start, _WORDS)
    generator = np.random.Philox(key=[seed % 2**64, stream]).advance(counter)
    made: npt.NDArray[np.uint64] = generator.random_raw(skip + count)
    return made[skip:]


def slots_drawn(seed: int, slots: int, start: int, count: int) -> Ints:
    """Find the slots from which the draws [start, start + count) take samples."""
    return (random_words(seed, 0, start, count) % np.uint64(slots)).astype(np.int64)


def last_order(seed: int, count: int) -> Ints:
    """Permute the slots for the end, when they are emptied."""
    return np.argsort(random_words(seed, 1, 0, count), kind="stable").astype(np.int64)


def shuffle(subset: Subset, state: State, *, source: Open, slots: int, seed: int) -> Flow:
    """Yield samples in an order that is random within about the length of the buffer.

    The order is arithmetic on numbers alone. Once the buffer's slots are full, draw t takes the
    sample of a random slot and puts sample `slots + t` there. With 3 slots, and the slots 1, 0, 1,
    1 drawn:

        in the buffer  0 1 2 | 0 3 2 | 4 3 2 | 4 5 2 | ...
        taken            1       0       3       5
        put              3       4       5       6

    So a slot holds the sample that its last draw put there. A state does not hold the buffer: the
    samples in it are read again, from the oldest one on.

    Args:
        subset: the subset of the samples.
        state: the state of this flow: `first`, the number of the sample that the source yields
            first, and `drawn`, the number of draws before; None at the end.
        source: a function that opens the flow of the samples.
        slots: the number of slots of the buffer.
        seed: the seed of the draws; each worker has other draws.
    """
    seed += subset[0] << 32
    first, drawn = (0, 0) if state is None else (state["first"], state["drawn"])
    with Input(source, subset, state) as given:
        if drawn is None:
            return
        offset = first - given.used  # from a number of `given` to a number of the pass
        buffered = slots + drawn - first  # samples in the buffer, and some that were in it
        if not given.has(buffered) and drawn:
            raise UsageError("A state names more samples than there are: the data changed.")
        pool = given.use(buffered)
        numbers = first + np.arange(len(pool))  # of the samples in `pool`, ascending
        # held: the number of the sample in each slot. Slots that no draw took since the oldest
        # sample hold what they held at the beginning.
        held = np.arange(min(slots, len(pool) + first))
        since = max(0, first - slots)
        held[slots_drawn(seed, slots, since, drawn - since)] = slots + np.arange(since, drawn)
        while given.has():
            block = given.use()
            taken = []
            for number, slot in enumerate(slots_drawn(seed, slots, drawn, len(block)), drawn):
                taken.append(held[slot])
                held[slot] = slots + number
            pool = concat([pool, block])
            numbers = np.append(numbers, slots + drawn + np.arange(len(block)))
            drawn += len(block)
            made = pool.take(np.searchsorted(numbers, np.array(taken, np.int64)))
            if len(numbers) > 2 * slots:  # leave out samples that have left the buffer
                kept = np.flatnonzero(np.isin(numbers, held))
                pool, numbers = pool.take(kept), numbers[kept]
            oldest = int(held.min(initial=drawn + slots))
            yield made.at({**given.state(oldest - offset), "first": oldest, "drawn": drawn})
        order = held[last_order(seed, len(held))]
        made = pool.take(np.searchsorted(numbers, order))
        yield made.at({**given.state(), "first": slots + drawn, "drawn": None})
