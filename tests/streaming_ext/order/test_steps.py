"""Schedules in tokens, and sizes of steps: texts, values at a token, and refusals."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.base.errors import UsageError
from streaming_ext.order.settings import OrderSettings
from streaming_ext.order.steps import Schedule, StepSizes


def test_megatron_s_words() -> None:
    schedule = Schedule.of_integers("0:768 250B:1536 500B:3072 1.5T:6144", name="global_batch")
    assert [point.start for point in schedule.points] == [0, 250e9, 500e9, 1500e9]
    for tokens, value in [(0, 768), (250 * 10**9 - 1, 768), (250 * 10**9, 1536), (10**13, 6144)]:
        assert schedule.at(tokens) == value
    assert schedule.largest == 6144
    assert not schedule.constant


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (" 0:1   2k:3 ", "0:1 2000:3"),
        ("0:1 0.5M:3.0", "0:1 500000:3"),
        ("7", "0:7"),
        (7, "0:7"),
        ("0:100 1K:200", "0:100 1000:200"),
    ],
)
def test_one_text_for_what_means_the_same(text, same) -> None:
    assert str(Schedule.of_integers(text, name="x")) == same
    assert Schedule.of_integers(same, name="x") == Schedule.of_integers(text, name="x")


@pytest.mark.parametrize(
    "text",
    [
        "1:2",
        "",
        "0:1 0:2",
        "0:1 5:2 4:3",
        "0:1,5:2",
        "0:1 5X:2",
        "0:-1",
        "0:1 1.5:2",
        "0:1->2 5:2",
        float("nan"),
    ],
)
def test_what_is_no_schedule(text) -> None:
    with pytest.raises(UsageError, match="`words` must be a number, or a schedule .* Got"):
        Schedule.of_integers(text, name="words")


@pytest.mark.parametrize("text", ["0:0", "0:1.5", 0, 2.5, 2**31, "9" * 20, "0:512 10B:9999999999"])
def test_what_is_no_schedule_of_whole_numbers(text) -> None:
    with pytest.raises(UsageError, match="`words` must be a whole number from 1 to 2,147,483,647"):
        Schedule.of_integers(text, name="words")


def test_proportions_are_exact() -> None:
    schedule = Schedule.of_proportions("0:0.9 200:0.2", name="proportion")
    assert [schedule.at(t) for t in (0, 199, 200)] == [*map(Fraction, ("0.9", "0.9", "0.2"))]
    assert str(schedule) == "0:0.9 200:0.2"
    with pytest.raises(UsageError, match="0 everywhere"):
        Schedule.of_proportions("0:0 5:0", name="proportion")


@given(st.floats(1e-9, 1e9))
def test_a_proportion_is_the_number_that_was_given(value) -> None:
    assert float(Schedule.of_proportions(value, name="proportion").at(0)) == value


@pytest.mark.parametrize(
    ("batch", "length", "why"),
    [
        ("6", "0:5 100:12", "`sequence_length` is 5 from token 0 on, which does not divide"),
        ("0:6 50:7", "0:4 100:12", "`global_batch` is 7 from token 50 on, at `sequence_length` 4"),
    ],
)
def test_what_does_not_fit_together(batch, length, why) -> None:
    with pytest.raises(UsageError, match=why):
        StepSizes(
            Schedule.of_integers(batch, name="global_batch"),
            Schedule.of_integers(length, name="sequence_length"),
        )


def order_settings(**changes) -> OrderSettings:
    return OrderSettings(**{"shuffle": True, "shuffle_block_size": 10, **changes})


@pytest.mark.parametrize(
    ("changes", "ranks", "why"),
    [
        (
            {"global_batch": "0:4 10B:6"},
            4,
            "`global_batch` is 6 from token 10,000,000,000 on, which 4",
        ),
        (
            {"global_batch": 6},
            4,
            "`global_batch` is 6 from token 0 on, which 4 data-parallel ranks",
        ),
        ({"global_batch": 6, "batch_size": 2}, 1, "not both"),
        ({"global_batch": "0:4 9:6", "split": "holdout"}, 1, "an evaluation .* steps of one size"),
        ({"global_batch": "0:4 9:6", "batching_method": "per_stream"}, 1, "per_stream"),
        (
            {"sequence_length": "0:4 9:8", "batch_size": 2, "packing": "best_fit"},
            1,
            "packing= fits",
        ),
    ],
)
def test_what_does_not_go_with_a_schedule(changes, ranks, why) -> None:
    with pytest.raises(UsageError, match=why):
        order_settings(**changes).steps(own_length=8, num_ranks=ranks)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"shuffle_seed": 2**63},
            "`shuffle_seed` must be a whole number up to 9,223,372,036,854,775,",
        ),
        ({"shuffle_seed": 1.5}, "`shuffle_seed` must be a whole number .*, got 1.5"),
        ({"shuffle_seed": -1}, "`shuffle_seed` must be at least 0, got -1"),
        ({"num_canonical_nodes": 2.0}, "`num_canonical_nodes` must be a whole number up to 65,536"),
        (
            {"num_canonical_nodes": 2**40},
            "`num_canonical_nodes` must be a whole number up to 65,536",
        ),
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"shuffle_block_size": 2**70}, "`shuffle_block_size` must be a whole number"),
    ],
)
def test_numbers_that_no_order_has(changes, why) -> None:
    with pytest.raises(UsageError, match=why):
        order_settings(**changes)
    order_settings(shuffle_seed=2**63 - 1, num_canonical_nodes=np.int64(2))
