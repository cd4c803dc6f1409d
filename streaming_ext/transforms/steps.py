"""Steps: functions of the samples that came, of a block of them or of all that are there.

Of the samples 0..9, 10 11 12 and 20..26, in rows of 6:

    chunk           0 1 2 3 4 5    20 21 22 23 24 25
    concat_chunk    0 1 2 3 4 5    6 7 8 9 10 11    12 20 21 22 23 24
    pack_chunk      0 1 2 3 4 5    10 11 12    20 21 22 23 24 25
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch.utils.data import default_collate

from streaming_ext.base.errors import UsageError
from streaming_ext.transforms.block import (
    Block,
    Column,
    Numbers,
    Sample,
    flat,
    lengths_of,
    regular,
    rows_of,
    tokens_of,
)
from streaming_ext.transforms.flow import Input, Made

Collate: TypeAlias = Callable[[Sequence[Sample]], Any]


def take(given: Input, at: int, last: bool, *, count: int) -> Made:
    """The first so many samples; worker 0 of 2 has 3 of 5 samples, worker 1 has 2."""
    number, workers = given.opening.share
    own = count // workers + (number < count % workers)
    made = given.use().slice(0, own - at)
    at += len(made)
    return made, at if at < own else None


def stride(given: Input, at: int, last: bool, *, interval: int, offset: int) -> Made:
    """Every so many-th sample: interval 3, offset 1 are the samples 1, 4, 7, ..."""
    block = given.use()
    chosen = np.arange((offset - at) % interval, len(block), interval)
    return block.gather(chosen), (at + len(block)) % interval


def enumerated(given: Input, at: int, last: bool, *, column: str) -> Made:
    """Samples with their number; of worker 1 of 3 they are 1, 4, 7, ..."""
    (number, workers), block = given.opening.share, given.use()
    numbers = pa.array(number + workers * np.arange(at, at + len(block)))
    return block.with_columns({column: numbers}) if len(block) else block, at + len(block)


def batched(
    given: Input, at: int, last: bool, *, size: int, collate: Collate, drop_last: bool
) -> Made:
    """Groups of samples, the last one perhaps smaller."""
    made: list[Any] = []
    while given.have >= size:  # of one piece as many as it has, since joining them is to copy them
        made += _groups(given.use(max(len(given.pieces[0]) // size, 1) * size), size, collate)
    if last and given.have and not drop_last:
        made += _groups(given.use(), size, collate)
    return Block(made), at


def _groups(block: Block, size: int, collate: Collate) -> list[Any]:
    starts = range(0, len(block), size)
    if collate is default_collate and block.columns:
        # (samples, tokens) each, where all columns are tokens of one length
        rows = {
            name: regular(column) if pa.types.is_large_list(column.type) else None
            for name, column in block.columns.items()
        }
        if not any(values is None for values in rows.values()):
            # Of its own memory each: a batch may be kept, sent or saved alone.
            return [
                {
                    name: torch.from_numpy(values[at : at + size].astype(np.int64))
                    for name, values in rows.items()
                    if values is not None
                }
                for at in starts
            ]
    return [collate(list(block.slice(at, min(at + size, len(block))).samples)) for at in starts]


def _columns(block: Block, names: Sequence[str]) -> tuple[dict[str, Column], Numbers]:
    """Some columns of tokens, and the length that all have in each sample.

    Raises:
        UsageError: they are not as long as each other.
    """
    found = {name: block.tokens(name) for name in names}
    first, *others = names
    lengths = lengths_of(found[first])
    for name in others:
        if not np.array_equal(lengths_of(found[name]), lengths):
            raise UsageError(
                f"The columns {first!r} and {name!r} must be as long as each other in every sample."
            )
    return found, lengths


def _spans(column: Column, starts: Numbers, lengths: Numbers) -> Column:
    """Rows out of the tokens of all samples: where each begins, and how many it has."""
    before = np.cumsum(lengths) - lengths
    # 5 6 9 10 11 for the rows 5, 6 and 9, 10, 11
    chosen = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
    return tokens_of(flat(column)[chosen], lengths)


def chunked(block: Block, *, length: int, names: Sequence[str], drop_rest: bool) -> Block:
    """Rows of each sample alone; a shorter rest is left out, if `drop_rest`."""
    columns, lengths = _columns(block, names)
    counts = lengths // length if drop_rest else -(-lengths // length)
    sample = np.repeat(np.arange(len(block)), counts)  # of each row
    number = np.arange(len(sample)) - (np.cumsum(counts) - counts)[sample]  # in its sample
    starts = (np.cumsum(lengths) - lengths)[sample] + number * length
    sizes = np.minimum(lengths[sample] - number * length, length)
    return Block({name: _spans(column, starts, sizes) for name, column in columns.items()})


def filled(block: Block, *, names: Sequence[str], longest: int | None) -> Block:
    """The samples that rows can hold: none that is empty, or too long."""
    columns, lengths = _columns(block, names)
    kept = np.flatnonzero((lengths > 0) & (longest is None or lengths <= longest))
    made = Block(columns)
    return made if len(kept) == len(block) else made.gather(kept)


def concat_chunk(given: Input, at: int, last: bool, *, length: int, names: Sequence[str]) -> Made:
    """Rows of all samples behind each other; what does not fill a row at the end is left out.

    It counts the tokens of the first sample that are used.
    """
    if not given.have:
        return Block(), at
    columns, lengths = _columns(given.rest, names)
    ends = np.cumsum(lengths)
    stop = at + (int(ends[-1]) - at) // length * length
    made = {
        name: rows_of(flat(column)[at:stop].reshape(-1, length)) for name, column in columns.items()
    }
    used = int(np.searchsorted(ends, stop, side="right"))
    given.use(used)
    return Block(made), stop - (int(ends[used - 1]) if used else 0)


def packed(given: Input, at: int, last: bool, *, length: int, names: Sequence[str]) -> Made:
    """Rows of whole samples; a sample longer than a row is cut."""
    if not given.have:
        return Block(), at
    columns, lengths = _columns(given.rest, names)
    counts = samples_of_rows(lengths.tolist(), length)
    stops = np.cumsum(counts if last else counts[:-1], dtype=np.int64)  # in samples
    ends = np.append(0, np.cumsum(lengths))  # in tokens
    starts = ends[np.append(0, stops)[:-1]]
    sizes = np.minimum(ends[stops] - starts, length)
    given.use(sum(counts if last else counts[:-1]))
    return Block({name: _spans(column, starts, sizes) for name, column in columns.items()}), at


def samples_of_rows(lengths: Sequence[int], row: int) -> list[int]:
    """How many samples go into each row, in their order: as many as fit, or one that is too long.

    Lengths 3, 2, 4, 9, 1 in rows of 5 give 2, 1, 1, 1.
    """
    counts: list[int] = []
    used = row
    for length in lengths:
        if used + length > row:
            counts.append(0)
            used = 0
        counts[-1] += 1
        used += length
    return counts


def padded(block: Block, *, values: Mapping[str, int], length: int) -> Block:
    """Columns filled up to one length, each with a value of its own."""
    made = {}
    for name, value in values.items():
        column = block.tokens(name)
        lengths = lengths_of(column)
        if lengths.max() > length:
            raise UsageError(
                f"Column {name!r} of a sample has {lengths.max()} tokens, pad() fills up to "
                f"{length}. Give a larger chunk_length, or cut or filter before."
            )
        # (samples, length)
        rows = np.full((len(lengths), length), value, np.int64)
        rows[np.arange(length) < lengths[:, None]] = flat(column)
        made[name] = rows_of(rows)
    return block.with_columns(made)


def around(
    values: npt.NDArray[Any], lengths: Numbers, before: Sequence[int], behind: Sequence[int]
) -> tuple[npt.NDArray[Any], Numbers]:
    """Tokens of samples, and how many each has, with some put before and behind each one's."""
    ids = np.array([*before, *behind], np.int64)
    if not len(ids):
        return values, lengths
    ends = np.cumsum(lengths)
    # (samples, ids): where in all tokens each of them is put
    places = np.where(np.arange(len(ids)) < len(before), (ends - lengths)[:, None], ends[:, None])
    kind = np.result_type(values.dtype, np.min_scalar_type(ids.max()))
    put = np.tile(ids, len(lengths))
    return np.insert(values.astype(kind), places.reshape(-1), put), lengths + len(ids)


def with_ends(block: Block, *, bos: int | None, eos: int | None, column: str) -> Block:
    """A token before and one behind those of each sample; None for nothing."""
    tokens = block.tokens(column)
    before, behind = ([one] if one is not None else [] for one in (bos, eos))
    made = around(flat(tokens), lengths_of(tokens), before, behind)
    return block.with_columns({column: tokens_of(*made)})
