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


def weights_of(lengths: Ints) -> Callable[[], Iterable[Ints]]:
    """Lengths in blocks of at most three documents."""
    return lambda: (lengths[first : first + 3] for first in range(0, len(lengths), 3))


def taken(choice: Choice, total: int, seed: int | None, cuts: list[int]) -> list[int]:
    """Numbers of the chosen documents, part by part."""
    ends = sorted({*(cut for cut in cuts if cut < total), total})
    found, first = [], 0
    for end in ends:
        found += (first + np.flatnonzero(chosen(first, end - first, choice.largest, seed))).tolist()
        first = end
    return found


@given(
    lengths=st.lists(st.integers(2, 50), min_size=1, max_size=80) | st.integers(1, 300),
    fraction=st.floats(0, 1),
    seed=st.none() | st.integers(0, 2**40),
    cuts=st.lists(st.integers(0)),
)
def test_as_many_as_weigh_no_more_than_asked(
    lengths: list[int] | int, fraction: float, seed: int | None, cuts: list[int]
) -> None:
    """By their tokens, or with a weight of one by their number."""
    weights = np.ones(lengths, np.int64) if isinstance(lengths, int) else np.array(lengths)
    total, most = len(weights), max(1, int(fraction * weights.sum()))
    order = np.argsort(keys_of(np.arange(total), seed), kind="stable")
    count = int((np.cumsum(weights[order]) <= most).sum())
    choice = choose(weights_of(weights), total, most, seed)
    assert choice.documents == count
    if count:
        assert taken(choice, total, seed, cuts) == sorted(order[:count].tolist())


def test_a_draw_is_spread_evenly_and_another_seed_is_another_draw() -> None:
    total = 100_000
    draws = {
        seed: taken(
            choose(lambda: [np.ones(total, np.int64)], total, 10_000, seed), total, seed, []
        )
        for seed in (None, 1, 2)
    }
    assert draws[None] == list(range(10_000))
    for seed in (1, 2):
        counts = np.histogram(draws[seed], bins=10, range=(0, total))[0]
        assert counts.min() > 900
        assert counts.max() < 1100
    assert len(set(draws[1]) & set(draws[2])) == pytest.approx(1000, abs=150)
