"""Choices: exact, the same for any cut into parts, and those of the definition."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.derive.choosing import (
    Choice,
    Ints,
    choose,
    chosen,
    keys_of,
)

SEEDS = st.one_of(st.none(), st.integers(0, 2**40))


def weights_of(lengths: Ints) -> Callable[[], Iterable[Ints]]:
    """Lengths in blocks of at most three documents."""
    return lambda: (lengths[first : first + 3] for first in range(0, len(lengths), 3))


def ones(total: int) -> Callable[[], Iterable[Ints]]:
    """A weight of one for each document."""
    return lambda: [np.ones(total, np.int64)]


def taken(choice: Choice, total: int, seed: int | None, cuts: list[int]) -> list[int]:
    """Numbers of the chosen documents, part by part."""
    ends = sorted({*(cut for cut in cuts if cut < total), total})
    found, first = [], 0
    for end in ends:
        found += (first + np.flatnonzero(chosen(first, end - first, choice.largest, seed))).tolist()
        first = end
    return found


@given(
    total=st.integers(1, 300), fraction=st.floats(0, 1), seed=SEEDS, cuts=st.lists(st.integers(0))
)
def test_a_number_of_documents(
    total: int, fraction: float, seed: int | None, cuts: list[int]
) -> None:
    count = max(1, int(fraction * total))
    choice = choose(ones(total), total, count, seed)
    order = np.argsort(keys_of(np.arange(total), seed), kind="stable")
    assert taken(choice, total, seed, cuts) == sorted(order[:count].tolist())
    assert choice.documents == count


@given(
    lengths=st.lists(st.integers(2, 50), min_size=1, max_size=80),
    fraction=st.floats(0, 1),
    seed=SEEDS,
)
def test_a_number_of_tokens(lengths: list[int], fraction: float, seed: int | None) -> None:
    tokens = max(1, int(fraction * sum(lengths)))
    order = np.argsort(keys_of(np.arange(len(lengths)), seed), kind="stable")
    sums = np.cumsum(np.array(lengths)[order])
    count = int((sums <= tokens).sum())
    choice = choose(weights_of(np.array(lengths)), len(lengths), tokens, seed)
    assert choice.documents == count
    if not count:
        return
    assert taken(choice, len(lengths), seed, []) == sorted(order[:count].tolist())


def test_a_draw_is_spread_evenly_and_another_seed_is_another_draw() -> None:
    total = 100_000
    draws = [taken(choose(ones(total), total, 10_000, seed), total, seed, []) for seed in (1, 2)]
    for draw in draws:
        counts = np.histogram(draw, bins=10, range=(0, total))[0]
        assert counts.min() > 900
        assert counts.max() < 1100
    assert len(set(draws[0]) & set(draws[1])) == pytest.approx(1000, abs=150)
