"""Streams mixed: proportions in every window, counts exact, draws in order."""

import numpy as np
import pytest

from streaming_ext.order.mixing import WINDOW_ROWS, Mixture


def all_draws(mixture: Mixture, *, epoch: int = 0) -> tuple[np.ndarray, np.ndarray]:
    positions = np.arange(sum(mixture.rows) * mixture.canonical_nodes)
    return mixture.draws(epoch, positions, (0,) * len(mixture.rows))


def test_every_window_holds_the_proportions() -> None:
    mixture = Mixture((700, 200, 100), canonical_nodes=2, seed=3, shuffle=True)
    streams, _ = all_draws(mixture)
    windows = streams.reshape(-1, WINDOW_ROWS * 2)
    for window in windows:
        assert np.bincount(window).tolist() == [140, 40, 20]
    assert len({tuple(window) for window in windows}) == len(windows)


@pytest.mark.parametrize("rows", [(333, 5, 171), (1, 999), (10, 10, 10, 10)])
def test_counts_stay_within_two_rows_of_the_proportion(rows: tuple[int, ...]) -> None:
    mixture = Mixture(rows, canonical_nodes=1, seed=3, shuffle=True)
    total = sum(rows)
    for row in range(total + 1):
        counts = mixture.counts(row)
        assert sum(counts) == row
        for count, part_rows in zip(counts, rows, strict=True):
            assert abs(count - row * part_rows / total) < 2
    assert mixture.counts(total) == rows


def test_consumed_is_what_draws_gave() -> None:
    mixture = Mixture((37, 90, 150), canonical_nodes=3, seed=9, shuffle=True)
    streams, _ = all_draws(mixture, epoch=4)
    for position in range(0, len(streams), 3):
        assert mixture.consumed(4, position) == tuple(np.bincount(streams[:position], minlength=3))


def test_an_epoch_continues_from_what_was_drawn_before() -> None:
    mixture = Mixture((2, 3), canonical_nodes=2, seed=1, shuffle=False)
    streams, draws = mixture.draws(1, np.arange(10), (4, 60))
    assert sorted(draws[streams == 0].tolist()) == [4, 5, 6, 7]
    assert sorted(draws[streams == 1].tolist()) == [60, 61, 62, 63, 64, 65]
