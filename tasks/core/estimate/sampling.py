"""From a sample of clusters to a total and how sure it is: arithmetic only.

A ratio estimate in two stages: some clusters (files, or row groups of a single file), and of each
some documents. What is known of every cluster, its size, carries the estimate; what is counted in
the sample is its ratio to that size. Cochran, Sampling Techniques, chapters 6 and 11.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

Floats = npt.NDArray[np.float64]

_Z = 1.959964  # of the normal distribution, 95%
# Student's t for 95%, by degrees of freedom from 1.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Quantity(BaseModel):
    """An estimate and its 95% interval, for the error of sampling alone.

    Attributes:
        value: the estimate.
        error: half the width of the interval, as a share of the value; None where the sample is
            too small to tell.
    """

    model_config = ConfigDict(frozen=True)

    value: float
    error: float | None

    @property
    def low(self) -> float:
        """Lower end; 0 where it cannot be told."""
        return 0.0 if self.error is None else max(0.0, self.value * (1 - self.error))

    @property
    def high(self) -> float:
        """Upper end; infinite where it cannot be told."""
        return float("inf") if self.error is None else self.value * (1 + self.error)

    def times(self, other: "Quantity | float") -> "Quantity":
        """The product with a number, or with an independent estimate."""
        if not isinstance(other, Quantity):
            return Quantity(value=self.value * other, error=self.error)
        both = None if self.error is None or other.error is None else (
            float(np.hypot(self.error, other.error))
        )  # fmt: skip
        return Quantity(value=self.value * other.value, error=both)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """One cluster of the sample.

    Attributes:
        size: what is known of the whole cluster.
        sizes: the share of that of each document that was read: (documents,).
        counts: what was counted in each of them: (documents,).
        share: how much of the cluster was read, in (0, 1].
    """

    size: float
    sizes: Floats
    counts: Floats
    share: float


def student(freedom: int) -> float:
    """Half the width of a 95% interval, in standard errors."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    first = (_Z**3 + _Z) / 4
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    return _Z + first / freedom + second / freedom**2


def ratio(clusters: Sequence[Cluster], *, population: int) -> Quantity:
    """Counts per unit of size, over all clusters of which these are a random sample.

    Args:
        clusters: at least one.
        population: number of all clusters.
    """
    n = len(clusters)
    sizes = np.array([cluster.size for cluster in clusters])
    # each cluster's own ratio, then what it makes of the whole cluster: (n,)
    own = np.array([cluster.counts.sum() / cluster.sizes.sum() for cluster in clusters])
    totals = own * sizes
    value = float(totals.sum() / sizes.sum())
    within = sum(
        _variance_within(cluster, rate) for cluster, rate in zip(clusters, own, strict=True)
    )
    share = n / population
    if n == 1 and population > 1:
        return Quantity(value=value, error=None)
    between = 0.0
    if n > 1:
        residuals = totals - value * sizes
        between = (1 - share) * n * float((residuals**2).sum()) / (n - 1)
    deviation = float(np.sqrt(between + share * within)) / float(sizes.sum())
    freedom = n - 1 if between else 10**6  # documents are many
    return Quantity(value=value, error=student(freedom) * deviation / value if value else 0.0)


def _variance_within(cluster: Cluster, rate: float) -> float:
    """Variance of a cluster's total, for the documents of it that were not read."""
    count = len(cluster.sizes)
    if cluster.share >= 1 or count < 2:
        return 0.0
    residuals = cluster.counts - rate * cluster.sizes
    mean = float(cluster.sizes.mean())
    per_size = float((residuals**2).sum()) / (count - 1) / count / mean**2
    return float(cluster.size**2 * (1 - cluster.share) * per_size)


def mean_ratio(counts: Floats, sizes: Floats, *, population: int) -> Quantity:
    """Counts per unit of size of clusters that were counted whole, out of `population`."""
    return ratio(
        [
            Cluster(size=size, sizes=np.array([size]), counts=np.array([count]), share=1.0)
            for count, size in zip(counts.tolist(), sizes.tolist(), strict=True)
        ],
        population=population,
    )
