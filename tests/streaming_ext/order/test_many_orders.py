"""Many streams looked up at once: what each gives alone."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.order.order import OrderSpec, PassOrder, StreamOrders


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_as_each_stream_alone(data) -> None:
    spec = OrderSpec(shuffle=data.draw(st.booleans()), seed=4, window=data.draw(st.integers(1, 30)),
                     canonical_nodes=data.draw(st.integers(1, 4)))  # fmt: skip
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
        streams = rng.integers(0, len(bounds), 150)
        draws = first + rng.integers(0, 60, 150)
        found = many.sequences(streams, draws)
        for stream, draw, sequence in zip(streams.tolist(), draws.tolist(), found, strict=True):
            size = int(many.sizes[stream])
            kept_bounds = bounds[stream] - np.searchsorted(left_out[stream], bounds[stream])
            of_pass = PassOrder.of(spec, bounds=kept_bounds, stream=stream, number=draw // size)
            kept = np.setdiff1d(np.arange(size + len(left_out[stream])), left_out[stream])
            assert sequence == kept[of_pass.sequences(np.array([draw]))[0]]
            assert many.draws_of(stream, np.array([sequence]), range(draw, draw + 1)) == [draw]
