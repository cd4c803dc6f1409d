"""Steps dealt out to ranks: every place once, the same step on any number of ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.errors import UsageError
from streaming_ext.sampler.rank_slices import RankSlices, step_layout


def test_the_layout_goes_lane_by_lane() -> None:
    assert step_layout(global_batch=6, lanes=3, phase=0).tolist() == [0, 3, 1, 4, 2, 5]
    # the step begins in lane 2: its places are of lanes 2, 0, 1, 2, 0, 1
    assert step_layout(global_batch=6, lanes=3, phase=2).tolist() == [1, 4, 2, 5, 0, 3]
    assert step_layout(global_batch=2, lanes=5, phase=4).tolist() == [1, 0]


@given(
    global_batch=st.sampled_from([1, 2, 6, 24, 30, 96]),
    lanes=st.integers(1, 64),
    shift=st.integers(0, 100),
    first=st.integers(0, 10**6),
)
def test_a_step_is_the_same_on_any_number_of_ranks(
    global_batch: int, lanes: int, shift: int, first: int
) -> None:
    starts = first + np.arange(3) * global_batch
    for ranks in (ranks for ranks in range(1, global_batch + 1) if global_batch % ranks == 0):
        slices = [
            RankSlices(batch_size=global_batch // ranks, lanes=lanes, rank=rank, num_ranks=ranks)
            for rank in range(ranks)
        ]
        steps = np.concatenate([one.places(starts, shift=shift) for one in slices], axis=1)
        whole = (starts[:, None] + np.arange(global_batch)).tolist()
        assert np.sort(steps, axis=1).tolist() == whole


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_nodes_that_divide_the_lanes_read_lanes_of_their_own(nodes: int) -> None:
    seen = []
    for rank in range(nodes):
        part = RankSlices(batch_size=16 // nodes, lanes=8, rank=rank, num_ranks=nodes)
        places = part.places(np.arange(20) * 16, shift=3)
        seen.append(set(((places + 3) % 8).reshape(-1).tolist()))
    assert all(len(lanes) == 8 // nodes for lanes in seen)
    assert set.union(*seen) == set(range(8))


def test_the_last_step_is_dropped_or_short() -> None:
    part = RankSlices(batch_size=4, lanes=1, rank=0, num_ranks=2)
    assert part.steps(17, drop_last=True) == 2
    assert part.steps(17, drop_last=False) == 3
    assert part.steps(16, drop_last=False) == 2


@pytest.mark.parametrize(("batch_size", "rank"), [(0, 0), (4, 2), (4, -1)])
def test_senseless_shares_are_refused(batch_size: int, rank: int) -> None:
    with pytest.raises(UsageError):
        RankSlices(batch_size=batch_size, lanes=1, rank=rank, num_ranks=2)
