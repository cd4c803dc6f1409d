"""Steps that change size: where they do, on any number of ranks, and resumed at each of them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import UsageError
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.order import OrderSpec
from streaming_ext.order.ranks import DataRank
from streaming_ext.order.settings import OrderSettings
from streaming_ext.order.steps import Schedule, StepSizes

LONGEST = 12


def sizes_of(global_batch: str, length: str) -> StepSizes:
    return StepSizes(Schedule.of_integers(global_batch, name="global_batch"),
                     Schedule.of_integers(length, name="sequence_length"))  # fmt: skip


@st.composite
def schedules(draw) -> StepSizes:
    """Batches that 6 ranks divide, lengths that divide the longest, changes at any token."""

    def written(values: list[int]) -> str:
        starts = [0, *sorted(draw(st.sets(st.integers(1, 1500), min_size=len(values) - 1,
                                          max_size=len(values) - 1)))]  # fmt: skip
        return " ".join(f"{start}:{value}" for start, value in zip(starts, values, strict=True))

    lengths = [*draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), max_size=3)), LONGEST]
    least = math.lcm(*(LONGEST // length for length in lengths), 6)
    batches = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return sizes_of(written([least * batch for batch in batches]), written(lengths))


@settings(max_examples=30, deadline=None)
@given(schedules(), st.integers(0, 2))
def test_each_step_has_the_size_of_the_tokens_behind_it(sizes, epoch) -> None:
    plan = EpochPlan(
        OrderSpec(shuffle=True, seed=3, canonical_nodes=3, window=17),
        bounds=[np.array([0, 66, 200])],
        choose=[150],
        steps=sizes,
        rank=DataRank(rank=0, size=1),
        drop_last=True,
    )
    cursor = plan.start(epoch)
    expected, position = [], 0
    while True:  # one step after another, as a trainer counts
        batch, length = sizes.at(cursor.tokens + position * LONGEST)
        if position + batch * length // LONGEST > plan.epoch_size:
            break
        expected.append((position, batch, length))
        position += batch * length // LONGEST
    phases = plan.phases(cursor)
    assert expected == [
        (phase.position_of(step), phase.batch_size, phase.length)
        for phase in phases for step in range(phase.first, phase.stop)
    ]  # fmt: skip
    assert [phase.first for phase in phases[1:]] == [phase.stop for phase in phases[:-1]]
    assert plan.steps_left(cursor) == len(expected)
    for step, (position, _, _) in enumerate(expected):
        here = plan.after(cursor, step)
        assert here.position == position
        assert plan.steps_done(here) == step
        assert plan.tokens_seen(here) == cursor.tokens + position * LONGEST


@pytest.mark.parametrize(("batch", "length", "why"), [
    ("6", "0:5 100:12", "`sequence_length` is 5 from token 0 on, which does not divide"),
    ("0:6 50:7", "0:4 100:12", "`global_batch` is 7 from token 50 on, at `sequence_length` 4"),
])  # fmt: skip
def test_what_does_not_fit_together(batch, length, why) -> None:
    with pytest.raises(UsageError, match=why):
        sizes_of(batch, length)


def order_settings(**changes) -> OrderSettings:
    return OrderSettings(**{"shuffle": True, "shuffle_block_size": 10, **changes})


@pytest.mark.parametrize(("changes", "ranks", "why"), [
    ({"global_batch": "0:4 10B:6"}, 4, "`global_batch` is 6 from token 10,000,000,000 on, which 4"),
    ({"global_batch": 6}, 4, "`global_batch` is 6 from token 0 on, which 4 data-parallel ranks"),
    ({"global_batch": 6, "batch_size": 2}, 1, "not both"),
    ({"global_batch": "0:4 9:6", "split": "holdout"}, 1, "an evaluation .* steps of one size"),
    ({"global_batch": "0:4 9:6", "batching_method": "per_stream"}, 1, "per_stream"),
    ({"sequence_length": "0:4 9:8", "batch_size": 2, "packing": "best_fit"}, 1, "packing= fits"),
])  # fmt: skip
def test_what_does_not_go_with_a_schedule(changes, ranks, why) -> None:
    with pytest.raises(UsageError, match=why):
        order_settings(**changes).steps(own_length=8, num_ranks=ranks)


@pytest.mark.parametrize(("changes", "why"), [
    ({"shuffle_seed": 2**63}, "`shuffle_seed` must be a whole number up to 9,223,372,036,854,775,"),
    ({"shuffle_seed": 1.5}, "`shuffle_seed` must be a whole number .*, got 1.5"),
    ({"shuffle_seed": -1}, "`shuffle_seed` must be at least 0, got -1"),
    ({"num_canonical_nodes": 2.0}, "`num_canonical_nodes` must be a whole number up to 65,536"),
    ({"num_canonical_nodes": 2**40}, "`num_canonical_nodes` must be a whole number up to 65,536"),
    ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
    ({"shuffle_block_size": 2**70}, "`shuffle_block_size` must be a whole number"),
])  # fmt: skip
def test_numbers_that_no_order_has(changes, why) -> None:
    with pytest.raises(UsageError, match=why):
        order_settings(**changes)
    order_settings(shuffle_seed=2**63 - 1, num_canonical_nodes=np.int64(2))


def test_a_batch_of_all_ranks_is_one_of_each() -> None:
    of_all = order_settings(global_batch=24).steps(own_length=8, num_ranks=4)
    assert of_all == order_settings(batch_size=6).steps(own_length=8, num_ranks=4)
    assert (of_all.at(0), of_all.change) == ((24, 8), False)
