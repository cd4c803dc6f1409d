"""Ratio estimates and their intervals, against populations that are known."""

import numpy as np
import pytest

from tasks.core.estimate.ratio import Quantity, ratio


def test_what_was_read_whole_is_exact() -> None:
    assert ratio([10, 10], [40, 60], read=1.0) == Quantity(value=0.2, error=0.0)


def test_one_of_many_tells_no_interval() -> None:
    assert ratio([2], [10], read=0.1) == Quantity(value=0.2, error=None)


def test_the_interval_by_hand() -> None:
    # Totals 1 and 3 of sizes 10 and 10: r = 0.2, residuals -1 and 1, s^2 = 2.
    # Half of it read: var = (1 - 1/2) * 2 * 2 / 20^2 = 0.005; t(1) = 12.71.
    found = ratio([1, 3], [10, 10], read=0.5)
    assert found.value == pytest.approx(0.2)
    assert found.error == pytest.approx(12.71 * np.sqrt(0.005) / 0.2)
    assert (found.times(50).value, found.times(50).error) == (pytest.approx(10), found.error)


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("drawn", [5, 12, 40])
def test_intervals_hold_the_truth_as_often_as_they_say(drawn: int, share: float) -> None:
    """40 files that differ in size and in tokens a byte, of documents that differ too."""
    rng = np.random.default_rng(drawn)
    inside, trials = 0, 400
    for _ in range(trials):
        sizes = [rng.lognormal(7, 1, int(rng.integers(30, 300))) for _ in range(40)]
        counts = [
            size * rng.normal(0.25, 0.02) * rng.normal(1, 0.3, len(size)).clip(0.1)
            for size in sizes
        ]
        truth = sum(map(np.sum, counts)) / sum(map(np.sum, sizes))
        found_counts, found_sizes, read = [], [], 0.0
        for file in rng.choice(40, drawn, replace=False):
            some = max(2, int(len(sizes[file]) * share))
            mine, size = sizes[file][:some].sum(), sizes[file].sum()
            found_sizes.append(size)
            found_counts.append(counts[file][:some].sum() * size / mine)
            read += mine
        found = ratio(found_counts, found_sizes, read=read / sum(map(np.sum, sizes)))
        inside += abs(found.value - truth) <= (found.error or 0) * found.value + 1e-12
    if (
        drawn == 40
    ):  # nothing is drawn, and what is read of each file is taken to differ as files do
        assert inside >= 0.99 * trials
    else:
        assert 0.89 <= inside / trials <= 0.985
