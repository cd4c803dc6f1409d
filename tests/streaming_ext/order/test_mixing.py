"""Proportions that change with the tokens: exact in every span, within their limits, resumed."""

from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import UsageError
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.mixing import Mixing, Mixture
from streaming_ext.order.order import OrderSpec
from streaming_ext.order.ranks import DataRank
from streaming_ext.order.steps import Schedule, StepSizes
from streaming_ext.training.resume import Resume


def mixing_of(*proportions: str | float, limits: tuple[float | None, ...] | None = None,
              at_limit: str = "error") -> Mixing:  # fmt: skip
    limits = limits or (None,) * len(proportions)
    return Mixing(
        proportions=tuple(
            Schedule.of_proportions(proportion, name="proportion") for proportion in proportions
        ),
        max_repeats=tuple(None if limit is None else Fraction(str(limit)) for limit in limits),
        at_limit=at_limit,
    )


@st.composite
def mixings(draw) -> Mixing:
    """Steps and ramps of two to four streams within 3,000 tokens."""
    texts = []
    for number in range(draw(st.integers(2, 4))):
        starts = sorted(draw(st.sets(st.integers(1, 2999), max_size=3)))
        values = [draw(st.integers(0, 9)) for _ in starts]
        words = [f"0:{draw(st.integers(0 if number else 1, 9))}"]
        words += [f"{start}:{value}" for start, value in zip(starts, values, strict=True)]
        for position in range(len(words) - 1):
            if draw(st.booleans()):
                words[position] += f"->{draw(st.integers(0, 9))}"
        texts.append(" ".join(words))
    try:
        return mixing_of(*texts)
    except UsageError:  # all are 0 somewhere, or one is everywhere
        return mixing_of(1, "0:1 700:1->5 1300:2", 3)


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
        middle = at + sum(span) * row_tokens // 2
        ramp = any(proportion.in_ramp(at) for proportion in mixing.proportions)
        weights = [proportion.at(middle if ramp else at) for proportion in mixing.proportions]
        for stream in range(count):
            wanted[stream] += sum(span) * weights[stream] / sum(weights)
            given_[stream] += span[stream]
            assert weights[stream] or not span[stream]  # nothing of what is switched off
        # A stream that is switched off while it is behind or ahead stays so for good.
        assert all(abs(a - b) < 2 * count for a, b in zip(wanted, given_, strict=True))
        at += sum(span) * row_tokens
    if count == 2 and all(w for w in weights):
        assert all(abs(a - b) <= 1 for a, b in zip(wanted, given_, strict=True))


def test_steps_change_at_their_row_and_ramps_in_a_stair() -> None:
    mixing = mixing_of("0:3 1000:1", 1)
    spans = mixing.spans(tokens=0, rows=200, row_tokens=10, room=(inf, inf))
    assert spans == [(75, 25), (50, 50)]
    # an epoch that begins between the two continues where the last one was
    assert mixing.spans(tokens=800, rows=40, row_tokens=10, room=(inf, inf)) == [
        (15, 5),
        (10, 10),
    ]
    ramp = mixing_of("0:0->8 80000:8", "0:8->0 80000:0.5")
    spans = ramp.spans(tokens=0, rows=8000, row_tokens=10, room=(inf, inf))
    assert len(spans) == 80  # one a window of a hundred rows
    firsts = [span[0] for span in spans]
    assert firsts == sorted(firsts)
    assert (firsts[0], firsts[-1], sum(firsts)) == (1, 99, 4000)


def test_limits_end_in_an_error_or_let_the_others_take_over() -> None:
    strict = mixing_of(1, 1, 2, limits=(3, None, None))
    with pytest.raises(UsageError, match=r"At token 1,1\d\d of training, stream 0 has reached"):
        strict.spans(tokens=1000, rows=100, row_tokens=10, room=(3, inf, inf))
    assert strict.spans(tokens=0, rows=8, row_tokens=1, room=(2, inf, inf)) == [(2, 2, 4)]
    soft = mixing_of(1, 1, 2, limits=(3, None, None), at_limit="renormalize")
    spans = soft.spans(tokens=0, rows=100, row_tokens=10, room=(3, inf, inf))
    assert [sum(counts) for counts in zip(*spans, strict=True)] == [3, 32, 65]
    none_left = mixing_of(1, 1, limits=(1, 1), at_limit="renormalize")
    with pytest.raises(UsageError, match="no other takes over"):
        none_left.spans(tokens=0, rows=100, row_tokens=1, room=(30, 60))
    with pytest.raises(UsageError, match="proportion 0 at token 50"):
        mixing_of("0:1 50:0", "0:1 20:0")


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 150), min_size=3, max_size=3), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_spans_are_dealt_out_one_after_another(spans, canonical_nodes) -> None:
    spans = [tuple(span) for span in spans if sum(span)]
    if not spans:
        return
    mixture = Mixture(*spans, canonical_nodes=canonical_nodes, seed=4, shuffle=True)
    total = sum(map(sum, spans))
    streams, draws = mixture.draws(2, np.arange(total * canonical_nodes), (0, 0, 0))
    begin = 0
    for span in spans:
        end = begin + sum(span) * canonical_nodes
        assert np.bincount(streams[begin:end:canonical_nodes], minlength=3).tolist() == list(span)
        begin = end
    for stream in range(3):
        own = np.flatnonzero(streams == stream)
        assert draws[own].tolist() == list(range(len(own)))
        for draw in range(0, len(own), 7):
            assert mixture.position_of(2, stream, draw) == own[draw]
    for position in range(0, total * canonical_nodes + 1, 5):
        assert mixture.seen(2, position) == tuple(np.bincount(streams[:position], minlength=3))


def plan_of(mixing: Mixing, *, ranks: int = 1, canonical_nodes: int = 2) -> EpochPlan:
    steps = StepSizes(
        Schedule.of_integers(12, name="batch"), Schedule.of_integers(4, name="length")
    )
    count = len(mixing.proportions)
    return EpochPlan(
        OrderSpec(shuffle=True, seed=3, canonical_nodes=canonical_nodes, window=17),
        bounds=[np.array([0, 40, 90 + 30 * number]) for number in range(count)],
        choose=[100] * count, steps=steps, rank=DataRank(rank=0, size=ranks), drop_last=True,
        mixing=mixing,
    )  # fmt: skip


@settings(max_examples=10, deadline=None)
@given(mixings(), st.integers(0, 2))
def test_a_mixture_that_changes_goes_on_at_any_step(mixing, epoch) -> None:
    plan = plan_of(mixing)
    begin = plan.start(epoch)
    steps = [tuple(map(np.ndarray.tolist, plan.step_of_all_ranks(begin, step)))
             for step in range(plan.steps_left(begin))]  # fmt: skip
    assert steps
    other = plan_of(mixing, ranks=3)
    drawn = [0] * len(mixing.proportions)
    fingerprints = tuple("abcd"[: len(mixing.proportions)])
    reported = {"sequence_length": 4, "num_canonical_nodes": 2, **mixing.identity()}
    for step in range(len(steps)):
        assert plan.seen(plan.after(begin, step)) == tuple(
            a + b for a, b in zip(begin.before, drawn, strict=True)
        )
        saved = Resume(plan=plan, settings=reported, fingerprints=fingerprints)
        loaded = Resume(plan=other, settings=reported, fingerprints=fingerprints)
        state = saved.state_of(plan.after(begin, step)).to_dict()
        cursor = loaded.resumed_at(loaded.saved_cursor(state, allow_changes=()))
        assert tuple(map(np.ndarray.tolist, other.step_of_all_ranks(cursor, 0))) == steps[step]
        for stream in steps[step][0]:
            drawn[stream] += 1
    for stream, size in enumerate(plan.sizes):  # and backwards
        found = plan.steps_with(begin, stream, np.arange(size))
        assert found == [step for step, (streams, _) in enumerate(steps) if stream in streams]


def test_limits_hold_over_epochs() -> None:
    plan = plan_of(mixing_of(1, 3, limits=(1.5, None), at_limit="renormalize"))
    assert plan.start(9).before[0] == 90 * 3 // 2 // 2 * 2  # in whole rows of two
    strict = plan_of(mixing_of(1, 3, limits=(1.5, None)))
    with pytest.raises(UsageError, match="stream 0 has reached `max_repeats`"):
        strict.start(9)
