"""Random epoch plans: step after step, on any number of ranks, and from sequences to steps."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import UsageError
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.mixing import Mixing
from streaming_ext.order.order import OrderSpec
from streaming_ext.order.ranks import DataRank
from streaming_ext.order.steps import Schedule, StepSizes
from tests.streaming_ext.order.test_mixing import mixing_of, mixings

LONGEST = 12
MakePlan = Callable[[DataRank], EpochPlan]


def sizes_of(global_batch: str, length: str) -> StepSizes:
    return StepSizes(
        Schedule.of_integers(global_batch, name="global_batch"),
        Schedule.of_integers(length, name="sequence_length"),
    )


@st.composite
def schedules(draw) -> StepSizes:
    """Draw batches that 6 ranks divide, lengths that divide the longest, changes at any token."""

    def written(values: list[int]) -> str:
        more = len(values) - 1
        starts = [0, *sorted(draw(st.sets(st.integers(1, 1500), min_size=more, max_size=more)))]
        return " ".join(f"{start}:{value}" for start, value in zip(starts, values, strict=True))

    lengths = [*draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), max_size=3)), LONGEST]
    least = math.lcm(*(LONGEST // length for length in lengths), 6)
    batches = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return sizes_of(written([least * batch for batch in batches]), written(lengths))


@st.composite
def plans(draw) -> MakePlan:
    """Draw plans of one to four streams; an epoch holds a part or several passes of each."""
    mixing: Mixing | None = draw(st.none() | mixings())
    streams = draw(st.integers(1, 3)) if mixing is None else len(mixing.proportions)
    shards = st.lists(st.integers(0, 20), min_size=1, max_size=5)
    bounds = [np.cumsum([0, 4, *draw(shards)]) for _ in range(streams)]
    choose = [60, *(draw(st.integers(4, 150)) for _ in bounds[1:])]
    order = OrderSpec(
        shuffle=draw(st.booleans()), seed=3, window=7, canonical_nodes=draw(st.integers(1, 4))
    )
    steps = draw(schedules())

    def make(rank: DataRank) -> EpochPlan:
        return EpochPlan(
            order,
            bounds=bounds,
            choose=choose,
            steps=steps,
            rank=rank,
            drop_last=True,
            mixing=mixing,
        )

    return make


@settings(max_examples=50, deadline=None)
@given(plans(), st.integers(0, 2), st.sampled_from([2, 3, 6]))
def test_each_step_is_the_next_one_on_any_ranks_and_is_found_backwards(make, epoch, ranks) -> None:
    plan = make(DataRank(rank=0, size=1))
    of_ranks = [make(DataRank(rank=rank, size=ranks)) for rank in range(ranks)]
    begin = plan.start(epoch)
    tokens = Counter()  # per stream, in this epoch
    held = defaultdict(set)  # the steps of each sequence
    step = position = 0
    while True:
        batch, length = plan.steps.at(begin.tokens + position * LONGEST)
        if position + batch * length // LONGEST > plan.epoch_size:
            break
        here = plan.after(begin, step)
        assert here.position == position
        assert plan.steps_done(here) == step
        assert plan.tokens_seen(here) == begin.tokens + position * LONGEST
        assert plan.seen(here) == tuple(
            before + tokens[stream] // LONGEST for stream, before in enumerate(begin.before)
        )
        phase = plan.phase_of(begin, step)
        assert (phase.position_of(step), phase.batch_size, phase.length) == (
            position,
            batch,
            length,
        )
        rows = sorted(zip(*map(np.ndarray.tolist, plan.step_of_all_ranks(here, 0)), strict=True))
        assert rows == sorted(
            row
            for one in of_ranks
            for row in zip(
                *(found[0].tolist() for found in one.sequences(begin, np.array([step]))),
                strict=True,
            )
        )
        for stream, number in rows:
            tokens[stream] += length
            held[stream, number * length // LONGEST].add(step)
        position += batch * length // LONGEST
        step += 1
    assert plan.steps_left(begin) == step > 0
    for stream, size in enumerate(plan.sizes):
        for number in range(size):
            found = plan.steps_with(begin, stream, np.array([number]))
            assert found == sorted(held[stream, number])


def test_limits_hold_over_epochs() -> None:
    def plan_of(mixing: Mixing) -> EpochPlan:
        return EpochPlan(
            OrderSpec(shuffle=True, seed=3, canonical_nodes=2, window=17),
            bounds=[np.array([0, 40, 90]), np.array([0, 40, 120])],
            choose=[100] * 2,
            steps=sizes_of("12", "4"),
            rank=DataRank(rank=0, size=1),
            drop_last=True,
            mixing=mixing,
        )

    plan = plan_of(mixing_of(1, 3, limits=(1.5, None)))
    assert plan.start(2).before == (100, 300)  # at most 135 of stream 0
    with pytest.raises(UsageError, match="stream 0 has reached `max_repeats`"):
        plan.start(3)
