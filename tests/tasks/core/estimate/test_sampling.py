"""Ratio estimates and their intervals, against populations that are known."""

import numpy as np
import pytest

from tasks.core.estimate.sampling import Cluster, Quantity, mean_ratio, ratio, student


def cluster(sizes: list[float], counts: list[float], *, size: float | None = None) -> Cluster:
    """A cluster of which these documents were read; all of it unless `size` says more."""
    total = size or sum(sizes)
    return Cluster(size=total, sizes=np.array(sizes), counts=np.array(counts),
                   share=sum(sizes) / total)  # fmt: skip


def test_what_was_read_whole_is_exact() -> None:
    found = ratio([cluster([10, 30], [2, 8]), cluster([60], [10])], population=2)
    assert found == Quantity(value=0.2, error=0.0)


def test_a_cluster_counts_by_its_size_not_by_what_was_read_of_it() -> None:
    found = ratio([cluster([1], [1], size=90), cluster([10], [0])], population=2)
    assert found.value == pytest.approx(0.9)


def test_one_of_many_tells_no_interval() -> None:
    found = ratio([cluster([10], [2])], population=7)
    assert found.value == 0.2
    assert found.error is None
    assert (found.low, found.high) == (0.0, float("inf"))
    assert Quantity(value=2.0, error=0.1).times(found).error is None


def test_the_interval_by_hand() -> None:
    # Totals 1 and 3 of sizes 10 and 10: r = 0.2, residuals -1 and 1, s^2 = 2.
    # Of 4 clusters: var = (1 - 2/4) * 2 * 2 / 20^2 = 0.005; t(1) = 12.706.
    found = ratio([cluster([10], [1]), cluster([10], [3])], population=4)
    assert found.value == pytest.approx(0.2)
    assert found.error == pytest.approx(12.706 * np.sqrt(0.005) / 0.2)


def test_students_t() -> None:
    for freedom, expected in [(1, 12.706), (5, 2.571), (9, 2.262), (15, 2.131), (100, 1.984)]:
        assert student(freedom) == pytest.approx(expected, abs=0.012)


def test_errors_of_independent_factors_add_in_quadrature() -> None:
    product = Quantity(value=2.0, error=0.03).times(Quantity(value=5.0, error=0.04))
    assert product.value == 10
    assert product.error == pytest.approx(0.05)
    assert product.low == pytest.approx(9.5)
    assert product.high == pytest.approx(10.5)


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("sampled", [5, 12, 40])
def test_intervals_hold_the_truth_as_often_as_they_say(sampled: int, share: float) -> None:
    """40 files that differ in size and in tokens a byte, of documents that differ too."""
    rng = np.random.default_rng(sampled)
    inside, trials = 0, 400
    for _ in range(trials):
        sizes = [rng.lognormal(7, 1, int(rng.integers(30, 300))) for _ in range(40)]
        counts = [
            size * rng.normal(0.25, 0.02) * rng.normal(1, 0.3, len(size)).clip(0.1)
            for size in sizes
        ]
        truth = sum(map(np.sum, counts)) / sum(map(np.sum, sizes))
        clusters = []
        for file in rng.choice(40, sampled, replace=False):
            read = max(2, int(len(sizes[file]) * share))
            clusters.append(
                cluster(sizes[file][:read].tolist(), counts[file][:read].tolist(),
                        size=float(sizes[file].sum()))
            )  # fmt: skip
        found = ratio(clusters, population=40)
        inside += found.low * (1 - 1e-12) <= truth <= found.high * (1 + 1e-12)
    if (sampled, share) == (40, 1.0):
        assert inside == trials
    else:
        assert 0.89 <= inside / trials <= 0.985


def test_a_mean_of_whole_clusters() -> None:
    found = mean_ratio(np.array([2.0, 4.0]), np.array([10.0, 20.0]), population=9)
    assert found.value == pytest.approx(0.2)
    assert found.error == pytest.approx(0, abs=1e-12)
