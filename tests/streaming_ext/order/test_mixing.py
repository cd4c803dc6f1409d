"""Streams mixed by proportions, constant or scheduled, exactly in every span and window."""

from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import UsageError
from streaming_ext.order.mixing import WINDOW_ROWS, Mixing, Mixture
from streaming_ext.order.order import OrderSpec
from streaming_ext.order.steps import Schedule


def spec_of(seed: int) -> OrderSpec:
    return OrderSpec(shuffle=True, seed=seed, canonical_nodes=1, window=1)


def mixing_of(*proportions: str | float, limits: tuple[float | None, ...] | None = None) -> Mixing:
    limits = limits or (None,) * len(proportions)
    return Mixing(
        proportions=tuple(
            Schedule.of_proportions(proportion, name="proportion") for proportion in proportions
        ),
        max_repeats=tuple(None if limit is None else Fraction(str(limit)) for limit in limits),
    )


@st.composite
def mixings(draw) -> Mixing:
    """Draw schedules of two to four streams within 3,000 tokens."""
    texts = []
    for number in range(draw(st.integers(2, 4))):
        starts = sorted(draw(st.sets(st.integers(1, 2999), max_size=3)))
        values = [draw(st.integers(0, 9)) for _ in starts]
        words = [f"0:{draw(st.integers(0 if number else 1, 9))}"]
        words += [f"{start}:{value}" for start, value in zip(starts, values, strict=True)]
        texts.append(" ".join(words))
    try:
        return mixing_of(*texts)
    except UsageError:  # all are 0 at some token, or one is 0 everywhere
        return mixing_of(1, "0:1 700:5 1300:2", 3)


@settings(max_examples=25, deadline=None)
@given(mixings(), st.integers(0, 4000), st.integers(1, 900), st.sampled_from([1, 2, 7]))
def test_every_span_has_its_proportions(mixing, tokens, rows, row_tokens) -> None:
    count = len(mixing.proportions)
    spans = mixing.spans(tokens=tokens, rows=rows, row_tokens=row_tokens, room=(inf,) * count)
    assert sum(map(sum, spans)) == rows
    wanted = [Fraction(0)] * count
    given_ = [0] * count
    at = tokens
    for span in spans:
        weights = [proportion.at(at) for proportion in mixing.proportions]
        for stream in range(count):
            wanted[stream] += sum(span) * weights[stream] / sum(weights)
            given_[stream] += span[stream]
            assert weights[stream] or not span[stream]  # a stream that is off gives nothing
        # A stream that is switched off while it is behind or ahead stays so for good.
        assert all(abs(a - b) < 2 * count for a, b in zip(wanted, given_, strict=True))
        at += sum(span) * row_tokens
    if count == 2 and all(w for w in weights):
        assert all(abs(a - b) <= 1 for a, b in zip(wanted, given_, strict=True))


def test_proportions_change_at_their_row() -> None:
    mixing = mixing_of("0:3 1000:1", 1)
    spans = mixing.spans(tokens=0, rows=200, row_tokens=10, room=(inf, inf))
    assert spans == [(75, 25), (50, 50)]
    # An epoch that begins within the first span continues it.
    assert mixing.spans(tokens=800, rows=40, row_tokens=10, room=(inf, inf)) == [
        (15, 5),
        (10, 10),
    ]


def test_limits_end_in_an_error() -> None:
    strict = mixing_of(1, 1, 2, limits=(3, None, None))
    with pytest.raises(UsageError, match="After token 1,000 of training, stream 0 has reached"):
        strict.spans(tokens=1000, rows=100, row_tokens=10, room=(3, inf, inf))
    assert strict.spans(tokens=0, rows=8, row_tokens=1, room=(2, inf, inf)) == [(2, 2, 4)]
    off = mixing_of(1, "0:1 50:0", limits=(None, 3))
    assert off.spans(tokens=50, rows=8, row_tokens=1, room=(inf, -1)) == [(8, 0)]
    with pytest.raises(UsageError, match="proportion 0 at token 50"):
        mixing_of("0:1 50:0", "0:1 20:0")


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 150), min_size=3, max_size=3), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_spans_come_one_after_another(spans, row_size) -> None:
    spans = [tuple(span) for span in spans if sum(span)]
    if not spans:
        return
    mixture = Mixture(spec_of(4), *spans, row_size=row_size)
    total = sum(map(sum, spans))
    bases = (4, 60, 0)  # drawn before
    streams, draws = mixture.draws(2, np.arange(total * row_size), bases)
    begin = 0
    for span in spans:
        end = begin + sum(span) * row_size
        assert np.bincount(streams[begin:end:row_size], minlength=3).tolist() == list(span)
        begin = end
    for stream in range(3):
        own = np.flatnonzero(streams == stream)
        assert (draws[own] - bases[stream]).tolist() == list(range(len(own)))


def test_every_window_holds_the_proportions() -> None:
    mixture = Mixture(spec_of(3), (700, 200, 100), row_size=2)
    streams, _ = mixture.draws(0, np.arange(2000), (0, 0, 0))
    windows = streams.reshape(-1, WINDOW_ROWS * 2)
    for window in windows:
        assert np.bincount(window).tolist() == [140, 40, 20]
    assert len({tuple(window) for window in windows}) == len(windows)


@pytest.mark.parametrize("rows", [(333, 5, 171), (1, 999), (10, 10, 10, 10)])
def test_counts_stay_within_two_rows_of_the_proportion(rows) -> None:
    mixture = Mixture(spec_of(3), rows, row_size=1)
    total = sum(rows)
    for row in range(total + 1):
        counts = mixture.counts(row)
        assert sum(counts) == row
        for count, part_rows in zip(counts, rows, strict=True):
            assert abs(count - row * part_rows / total) < 2
    assert mixture.counts(total) == rows
