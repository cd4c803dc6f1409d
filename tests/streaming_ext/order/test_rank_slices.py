"""Steps dealt out to ranks: every place once, the same step on any number of ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.base.errors import UsageError
from streaming_ext.order.ranks import DataRank
from streaming_ext.order.schedule import Schedule
from streaming_ext.order.steps import Stage, StepSizes, step_layout


def stage_of(*, batch: int, lanes: int, rank: int, ranks: int, place: int = 0) -> Stage:
    return Stage(first=0, steps=100, place=place, length=8, global_batch=batch, pieces=1,
                 lanes=lanes, rank=DataRank(rank=rank, size=ranks))  # fmt: skip


def test_the_layout_goes_lane_by_lane() -> None:
    assert step_layout(rows=6, lanes=3, phase=0).tolist() == [0, 3, 1, 4, 2, 5]
    # the step begins in lane 2: its places are of lanes 2, 0, 1, 2, 0, 1
    assert step_layout(rows=6, lanes=3, phase=2).tolist() == [1, 4, 2, 5, 0, 3]
    assert step_layout(rows=2, lanes=5, phase=4).tolist() == [1, 0]


@given(
    global_batch=st.sampled_from([1, 2, 6, 24, 30, 96]),
    lanes=st.integers(1, 64),
    shift=st.integers(0, 100),
    first=st.integers(0, 10**6),
)
def test_a_step_is_the_same_on_any_number_of_ranks(
    global_batch: int, lanes: int, shift: int, first: int
) -> None:
    numbers = np.arange(3)
    starts = first + numbers * global_batch
    for ranks in (ranks for ranks in range(1, global_batch + 1) if global_batch % ranks == 0):
        stages = [
            stage_of(batch=global_batch, lanes=lanes, rank=rank, ranks=ranks, place=first)
            for rank in range(ranks)
        ]
        steps = np.concatenate([one.places(numbers, shift=shift) for one in stages], axis=1)
        whole = (starts[:, None] + np.arange(global_batch)).tolist()
        assert np.sort(steps, axis=1).tolist() == whole


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_nodes_that_divide_the_lanes_read_lanes_of_their_own(nodes: int) -> None:
    seen = []
    for rank in range(nodes):
        part = stage_of(batch=16, lanes=8, rank=rank, ranks=nodes)
        places = part.places(np.arange(20), shift=3)
        seen.append(set(((places + 3) % 8).reshape(-1).tolist()))
    assert all(len(lanes) == 8 // nodes for lanes in seen)
    assert set.union(*seen) == set(range(8))


@pytest.mark.parametrize(("places", "drop_last", "count"), [
    (17, True, 2), (17, False, 3), (16, False, 2), (0, False, 0),
])  # fmt: skip
def test_the_last_step_is_dropped_or_short(places: int, drop_last: bool, count: int) -> None:
    sizes = StepSizes(Schedule.whole(8, name="batch"), Schedule.whole(4, name="length"))
    found = sizes.stages(place=0, end=places, tokens=0, drop_last=drop_last)
    assert sum(stage.steps for stage in found) == count


@pytest.mark.parametrize("rank", [2, -1])
def test_ranks_that_are_none_are_refused(rank: int) -> None:
    with pytest.raises(UsageError):
        DataRank(rank=rank, size=2)
