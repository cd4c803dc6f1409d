"""Blocks of steps of several workers, collected as a DataLoader does, are all steps in order."""

from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.training.batch_reader import blocks_of

NUM_WORKERS = st.integers(1, 9)
SIZE = st.integers(1, 7)


def in_turn(workers: Sequence[Iterable[Any]]) -> list[Any]:
    """What a DataLoader collects: one of each worker in turn; who has no more is left out."""
    rounds = zip_longest(*workers)
    return [one for one in chain.from_iterable(rounds) if one is not None]


@given(lengths=st.lists(st.tuples(st.integers(0, 40), SIZE), max_size=5), num_workers=NUM_WORKERS)
def test_blocks_of_any_phases(lengths: list[tuple[int, int]], num_workers: int) -> None:
    ranges, begin = [], 0
    for steps, size in lengths:
        ranges.append((range(begin, begin + steps), size))
        begin += steps
    dealt = [
        list(blocks_of(ranges, worker=number, num_workers=num_workers))
        for number in range(num_workers)
    ]
    blocks = in_turn(dealt)
    assert [*chain.from_iterable(blocks)] == [*range(begin)]
    assert blocks == list(blocks_of(ranges))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
