"""Schedules in tokens: what is written, what holds where, what is refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.base.errors import UsageError
from streaming_ext.order.steps import Schedule


def test_megatron_s_words() -> None:
    schedule = Schedule.of_integers("0:768 250B:1536 500B:3072 1.5T:6144", name="global_batch")
    assert [point.start for point in schedule.points] == [0, 250e9, 500e9, 1500e9]
    for tokens, value in [(0, 768), (250 * 10**9 - 1, 768), (250 * 10**9, 1536), (10**13, 6144)]:
        assert schedule.at(tokens) == value
    assert schedule.largest == 6144
    assert not schedule.constant


@pytest.mark.parametrize(("text", "same"), [
    (" 0:1   2k:3 ", "0:1 2000:3"), ("0:1 0.5M:3.0", "0:1 500000:3"), ("7", "0:7"), (7, "0:7"),
    ("0:100 1K:200", "0:100 1000:200"),
])  # fmt: skip
def test_one_text_for_what_means_the_same(text, same) -> None:
    assert str(Schedule.of_integers(text, name="x")) == same
    assert Schedule.of_integers(same, name="x") == Schedule.of_integers(text, name="x")


@pytest.mark.parametrize("text", [
    "1:2", "", "0:1 0:2", "0:1 5:2 4:3", "0:1,5:2", "0:1 5X:2", "0:-1", "0:1 1.5:2", "0:1->2",
    float("nan"),
])  # fmt: skip
def test_what_is_no_schedule(text) -> None:
    with pytest.raises(UsageError, match="`words` must be a number, or a schedule .* Got"):
        Schedule.of_integers(text, name="words")


@pytest.mark.parametrize(
    "text", ["0:0", "0:1.5", "0:1->2 5:2", 0, 2.5, 2**31, "9" * 20, "0:512 10B:9999999999"]
)
def test_what_is_no_schedule_of_whole_numbers(text) -> None:
    with pytest.raises(UsageError, match="`words` must be a whole number from 1 to 2,147,483,647"):
        Schedule.of_integers(text, name="words")


def test_ramps_are_straight_lines() -> None:
    schedule = Schedule.of_proportions("0:0.9 100:0.9->0.2 200:0.2", name="proportion")
    assert [schedule.at(t) for t in (0, 99, 100)] == [Fraction("0.9")] * 3
    assert schedule.at(150) == Fraction("0.55")
    assert schedule.at(200) == schedule.at(10**9) == Fraction("0.2")
    assert [schedule.in_ramp(t) for t in (99, 100, 199, 200)] == [False, True, True, False]
    assert str(schedule) == "0:0.9 100:0.9->0.2 200:0.2"
    with pytest.raises(UsageError, match="0 everywhere"):
        Schedule.of_proportions("0:0 5:0", name="proportion")


@given(st.floats(1e-9, 1e9))
def test_a_proportion_is_the_number_that_was_given(value) -> None:
    assert float(Schedule.of_proportions(value, name="proportion").at(0)) == value
