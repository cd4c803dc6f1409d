"""The order of a pass: a permutation, the same on every machine, far from the order on disk."""

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.order.order import (
    OrderSpec,
    PassOrder,
    key_of,
    permutation,
    permute,
    with_words,
)
from streaming_ext.order.streams import StreamOrders


def bounds_of(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def spec_of(**changes: object) -> OrderSpec:
    return OrderSpec(**({"shuffle": True, "seed": 17, "canonical_nodes": 3, "window": 7} | changes))


class TestPermute:
    @given(size=st.integers(1, 3000), word=st.integers(0, 2**62))
    @settings(max_examples=60, deadline=None)
    def test_it_is_one_to_one(self, size, word) -> None:
        key = np.broadcast_to(key_of(word), (size,))
        image = permute(np.arange(size), np.full(size, size), key)
        assert sorted(image.tolist()) == list(range(size))

    def test_large_ranges_stay_one_to_one_on_a_sample(self) -> None:
        size, count = 10**12 + 7, 200_000
        image = permute(np.arange(count), np.full(count, size), np.repeat(key_of(5), count))
        assert len(np.unique(image)) == count
        assert image.min() >= 0
        assert image.max() < size
        assert abs(image.mean() / size - 0.5) < 0.005

    def test_every_order_of_three_comes_about_equally_often(self) -> None:
        keys = np.repeat(with_words(key_of(), np.arange(6000)), 3)
        image = permute(np.tile(np.arange(3), 6000), np.full(18000, 3), keys).reshape(-1, 3)
        _, counts = np.unique(image, axis=0, return_counts=True)
        assert len(counts) == 6
        assert counts.min() > 850
        assert counts.max() < 1150


def test_the_order_of_published_runs_is_pinned() -> None:
    """A change here breaks every saved state."""
    assert permutation(8, key_of(17, 0, 0, 0)).tolist() == PINNED_PERMUTATION
    order = PassOrder.of(spec_of(), bounds=bounds_of([5, 4, 6, 5]))
    assert order.sequences(np.arange(20)).tolist() == PINNED_PASS


PINNED_PERMUTATION = [6, 1, 5, 3, 0, 4, 7, 2]
PINNED_PASS = [16, 18, 13, 7, 1, 9, 15, 19, 14, 5, 0, 10, 8, 3, 12, 17, 4, 11, 6, 2]


class TestPassOrder:
    @given(
        counts=st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any),
        canonical_nodes=st.integers(1, 9),
        window=st.integers(1, 40),
        number=st.integers(0, 3),
        shuffle=st.booleans(),
    )
    @settings(max_examples=150, deadline=None)
    def test_each_pass_holds_every_sequence_once(
        self, counts, canonical_nodes, window, number, shuffle
    ) -> None:
        spec = spec_of(canonical_nodes=canonical_nodes, window=window, shuffle=shuffle)
        order = PassOrder.of(spec, bounds=bounds_of(counts), number=number)
        draws = np.arange(number * sum(counts), (number + 1) * sum(counts))
        assert sorted(order.sequences(draws).tolist()) == list(range(sum(counts)))

    def test_without_shuffle_it_is_the_order_on_disk_in_each_canonical_node(self) -> None:
        order = PassOrder.of(spec_of(shuffle=False, canonical_nodes=1), bounds=bounds_of([3, 0, 4]))
        assert order.sequences(np.arange(7)).tolist() == list(range(7))
        order = PassOrder.of(spec_of(shuffle=False, canonical_nodes=3), bounds=bounds_of([7]))
        # Canonical nodes of 3, 2 and 2 sequences are read in turn.
        assert order.sequences(np.arange(7)).tolist() == [0, 3, 5, 1, 4, 6, 2]

    def test_every_setting_stream_and_pass_has_its_own_order(self) -> None:
        def drawn(number: int = 0, stream: int = 0, **changes: int) -> tuple[int, ...]:
            order = PassOrder.of(
                spec_of(**changes), bounds=bounds_of([10] * 6), stream=stream, number=number
            )
            return tuple(order.sequences(np.arange(60) + 60 * number).tolist())

        assert (
            len(
                {
                    drawn(),
                    drawn(1),
                    drawn(stream=1),
                    drawn(seed=18),
                    drawn(window=8),
                    drawn(canonical_nodes=2),
                }
            )
            == 6
        )


def test_ten_thousand_million_sequences_need_no_more_memory() -> None:
    spec = spec_of(canonical_nodes=8, window=1 << 18)
    order = StreamOrders(spec, bounds=[np.arange(1001) * 10_000_000])
    streams = np.zeros(1000, np.int64)
    tracemalloc.start()
    drawn = order.sequences(streams, np.arange(9 * 10**9, 9 * 10**9 + 1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(drawn)) == 1000
    assert peak < 2**24


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_many_streams_looked_up_at_once_give_what_each_gives_alone(data) -> None:
    spec = OrderSpec(
        shuffle=data.draw(st.booleans()),
        seed=4,
        window=data.draw(st.integers(1, 30)),
        canonical_nodes=data.draw(st.integers(1, 4)),
    )
    bounds, left_out = [], []
    for _ in range(data.draw(st.integers(1, 5))):
        counts = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))
        own = np.concatenate([[0], np.cumsum([counts[0] + 9, *counts])])
        most = int(own[-1])
        left_out.append(
            np.array(sorted(data.draw(st.sets(st.integers(0, most - 1), max_size=8))), int)
        )
        bounds.append(own)
    many = StreamOrders(spec, bounds=bounds, left_out=left_out)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    for first in (0, 40, 200, 40):  # passes come, go, and come again
        streams = rng.integers(0, len(bounds), 40)
        draws = first + rng.integers(0, 60, 40)
        found = many.sequences(streams, draws)
        for stream, draw, sequence in zip(streams.tolist(), draws.tolist(), found, strict=True):
            size = int(many.sizes[stream])
            kept_bounds = bounds[stream] - np.searchsorted(left_out[stream], bounds[stream])
            of_pass = PassOrder.of(spec, bounds=kept_bounds, stream=stream, number=draw // size)
            kept = np.setdiff1d(np.arange(size + len(left_out[stream])), left_out[stream])
            assert sequence == kept[of_pass.sequences(np.array([draw]))[0]]
            assert many.draws_of(stream, np.array([sequence]), range(draw, draw + 1)) == [draw]
