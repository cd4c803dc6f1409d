"""Steps dealt out to workers: collected as a DataLoader does, they are all there, in order."""

from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.training.batch_reader import Blocks, Run, StepsInTurn

NUM_WORKERS = st.integers(1, 9)
SIZE = st.integers(1, 7)


def in_turn(workers: Sequence[Iterable[Any]]) -> list[Any]:
    """What a DataLoader collects: one of each worker in turn; who has no more is left out."""
    rounds = zip_longest(*workers)
    return [one for one in chain.from_iterable(rounds) if one is not None]


@given(lengths=st.lists(st.tuples(st.integers(0, 40), SIZE), max_size=5), num_workers=NUM_WORKERS)
def test_blocks_of_any_runs(lengths: list[tuple[int, int]], num_workers: int) -> None:
    runs, begin = [], 0
    for steps, size in lengths:
        runs.append(Run(steps=range(begin, begin + steps), size=size))
        begin += steps
    dealt = [list(Blocks(runs=runs, worker=n, num_workers=num_workers)) for n in range(num_workers)]
    blocks = in_turn(dealt)
    assert [*chain.from_iterable(blocks)] == [*range(begin)]
    assert blocks == list(Blocks(runs=runs))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@given(steps=st.integers(0, 60), size=SIZE, num_workers=NUM_WORKERS, received=st.integers(0, 60))
def test_steps_in_turn_from_any_step(
    steps: int, size: int, num_workers: int, received: int
) -> None:
    """After so many steps that training received, the workers go on with what each has left."""
    received = min(received, steps)
    dealt = []
    for worker in range(num_workers):
        given_out = len(range(worker, received, num_workers))
        blocks = StepsInTurn(
            steps=steps, size=size, worker=worker, num_workers=num_workers, first=given_out
        )
        assert all(len(block) <= size for block in blocks)
        own = [*chain.from_iterable(blocks)]
        assert given_out + len(own) == blocks.own_steps
        dealt.append(own)
    turn = received % num_workers
    assert in_turn(dealt[turn:] + dealt[:turn]) == [*range(received, steps)]
