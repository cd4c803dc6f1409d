"""n-grams that repeat, compared with a search that looks everywhere."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.training.features.repeats import LONGEST, repeats_more

EOT = 9


def found_everywhere(row: list[int], times: int) -> bool:
    for period in range(1, LONGEST + 1):
        size = period * (times + 1)
        for first in range(len(row) - size + 1):
            segment = row[first : first + size]
            if segment == segment[:period] * (times + 1) and set(segment) != {EOT}:
                return True
    return False


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 6))
def test_short_rows(row, times) -> None:
    assert repeats_more(np.array([row]), times, eot_id=EOT)[0] == found_everywhere(row, times)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 100), st.integers(1, 13), st.integers(1, 40), st.integers(0, 3))
def test_one_run_in_a_long_row(first, period, times, more) -> None:
    row = np.arange(1000, 2500) % 1300
    size = min(len(row) - first, period * (times + more))
    row[first : first + size] = np.resize(np.arange(period), size)
    plain = np.arange(1000, 2500)
    flags = repeats_more(np.stack([plain, row]), times, eot_id=EOT)
    assert flags.tolist() == [False, found_everywhere(row.tolist(), times)]


def test_padding_does_not_count() -> None:
    row = np.array([[1, 2, 3, *[EOT] * 50], [1, 2, 3, *[4] * 50]])
    assert repeats_more(row, 10, eot_id=EOT).tolist() == [False, True]
