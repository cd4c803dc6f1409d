"""Steps dealt out to ranks: every position once, the same step on any number of ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.base.errors import UsageError
from streaming_ext.order.ranks import DataRank
from streaming_ext.order.steps import Phase, Schedule, StepSizes, step_layout


def phase_of(
    *, batch: int, canonical_nodes: int, rank: int, ranks: int, position: int = 0
) -> Phase:
    return Phase(first=0, stop=100, position=position, length=8, global_batch=batch,
                 per_position=1, canonical_nodes=canonical_nodes,
                 rank=DataRank(rank=rank, size=ranks))  # fmt: skip


def test_the_layout_goes_node_by_node() -> None:
    assert step_layout(rows=6, canonical_nodes=3, first_node=0).tolist() == [0, 3, 1, 4, 2, 5]
    # the step begins in canonical node 2: its positions are of canonical nodes 2, 0, 1, 2, 0, 1
    assert step_layout(rows=6, canonical_nodes=3, first_node=2).tolist() == [1, 4, 2, 5, 0, 3]
    assert step_layout(rows=2, canonical_nodes=5, first_node=4).tolist() == [1, 0]


@given(
    global_batch=st.sampled_from([1, 2, 6, 24, 30, 96]),
    canonical_nodes=st.integers(1, 64),
    shift=st.integers(0, 100),
    first=st.integers(0, 10**6),
)
def test_a_step_is_the_same_on_any_number_of_ranks(
    global_batch: int, canonical_nodes: int, shift: int, first: int
) -> None:
    numbers = np.arange(3)
    starts = first + numbers * global_batch
    for ranks in (ranks for ranks in range(1, global_batch + 1) if global_batch % ranks == 0):
        phases = [
            phase_of(
                batch=global_batch,
                canonical_nodes=canonical_nodes,
                rank=rank,
                ranks=ranks,
                position=first,
            )
            for rank in range(ranks)
        ]
        steps = np.concatenate([one.positions(numbers, shift=shift) for one in phases], axis=1)
        whole = (starts[:, None] + np.arange(global_batch)).tolist()
        assert np.sort(steps, axis=1).tolist() == whole


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_nodes_that_divide_the_canonical_nodes_read_their_own(
    nodes: int,
) -> None:
    seen = []
    for rank in range(nodes):
        part = phase_of(batch=16, canonical_nodes=8, rank=rank, ranks=nodes)
        positions = part.positions(np.arange(20), shift=3)
        seen.append(set(((positions + 3) % 8).reshape(-1).tolist()))
    assert all(len(canonical_nodes) == 8 // nodes for canonical_nodes in seen)
    assert set.union(*seen) == set(range(8))


@pytest.mark.parametrize(("positions", "drop_last", "count"), [
    (17, True, 2), (17, False, 3), (16, False, 2), (0, False, 0),
])  # fmt: skip
def test_the_last_step_is_dropped_or_short(positions: int, drop_last: bool, count: int) -> None:
    sizes = StepSizes(Schedule.of_integers(8, name="batch"), Schedule.of_integers(4, name="length"))
    found = sizes.phases(position=0, end=positions, tokens=0, drop_last=drop_last)
    assert sum(phase.stop - phase.first for phase in found) == count


@pytest.mark.parametrize("rank", [2, -1])
def test_ranks_that_are_none_are_refused(rank: int) -> None:
    with pytest.raises(UsageError):
        DataRank(rank=rank, size=2)
