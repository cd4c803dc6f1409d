"""Division that rounds up, consecutive numbers, and windows of values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.base.arrays import ceil_div, ranges, windows


@pytest.mark.parametrize(("number", "expected"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (-5, -1)])
def test_division_rounds_up(number, expected) -> None:
    assert ceil_div(number, 4) == expected
    assert ceil_div(np.array([number]), 4).tolist() == [expected]


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9))))
def test_ranges_lie_end_to_end(pairs) -> None:
    firsts, counts = np.array(pairs, np.int64).reshape(-1, 2).T
    wanted = [n for first, count in pairs for n in range(first, first + count)]
    assert ranges(firsts, counts).tolist() == wanted


def test_windows_share_memory() -> None:
    values = np.arange(5, dtype=np.uint16)
    found = windows(values, 3)
    assert [each.tobytes() for each in found] == [values[n : n + 3].tobytes() for n in range(3)]
    assert np.shares_memory(found, values)
