"""The order of a shuffled dataset looks like a permutation drawn by NumPy, and has fixed keys."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from streaming_ext.base.arrays import ceil_div
from streaming_ext.format.shuffled import (
    MAX_PART_BYTES,
    ascending,
    document_keys,
    key_range,
    num_parts,
)

SIZES = (7000, 1, 300, 12_000, 4000, 2500, 4199)  # documents of each source

Ints = npt.NDArray[np.int64]


def order_by_key(seed: int) -> Ints:
    sources = np.repeat(np.arange(len(SIZES)), SIZES)
    places = np.concatenate([np.arange(size) for size in SIZES])
    return np.argsort(document_keys(seed, sources, places), kind="stable")


def displacement(order: Ints) -> float:
    """Return the mean distance in the order of documents that are neighbours in the sources."""
    positions = np.argsort(order)
    return float(np.abs(np.diff(positions)).mean())


def permutation(seed: int) -> Ints:
    return np.random.default_rng(seed).permutation(sum(SIZES))


def test_neighbours_lie_as_far_apart_as_in_a_permutation_of_numpy() -> None:
    drawn, found = (
        [displacement(order(seed)) for seed in range(20)] for order in (permutation, order_by_key)
    )
    spread = float(np.std(drawn))
    assert abs(np.mean(found) - np.mean(drawn)) < 4 * spread / np.sqrt(10)
    assert 0.5 * spread < np.std(found) < 2 * spread
    in_order = displacement(np.arange(sum(SIZES)))
    assert in_order < np.mean(drawn) / 100  # an unshuffled order stands out


def test_another_seed_is_another_order() -> None:
    one, other = order_by_key(0), order_by_key(1)
    assert (one != other).mean() > 0.99
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_keys_do_not_change() -> None:
    keys = document_keys(3, np.array([0, 0, 1]), np.array([0, 1, 0]))
    assert keys.tolist() == [13434652228502869909, 3386077168193174926, 2937659323000540188]


def test_ranges_cover_all_keys() -> None:
    for parts in (1, 3, 64, 1000):
        ranges = [key_range(part, parts) for part in range(parts)]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == 2**64
        assert all(one[1] == after[0] for one, after in pairwise(ranges))


def test_number_of_parts() -> None:
    assert num_parts(0, 2**26) == 1
    assert num_parts(2**26, 2**26) == 1
    assert num_parts(2**26 + 1, 2**26) == 2
    assert num_parts(2**26, 1024) == 64  # not more: they would be small
    assert num_parts(2**40, 1024) == ceil_div(2**40, MAX_PART_BYTES)
    assert num_parts(2**40, 2**30) == ceil_div(2**40, MAX_PART_BYTES)


@pytest.mark.parametrize("most", [1, 40, 2**64 - 1])
def test_keys_are_put_in_order_and_equal_ones_stay_as_they_stand(most) -> None:
    keys = np.random.default_rng(0).integers(0, most, 5000, np.uint64)
    order = ascending(keys)
    assert order.tolist() == sorted(range(5000), key=lambda at: (keys[at], at))
    assert ascending(keys[:0]).tolist() == []
