"""Many streams looked up at once: what each gives alone."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.sampler.orders.many_orders import ManyOrders
from streaming_ext.sampler.orders.order import OrderSpec, StreamOrder, kept_bounds


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_as_each_stream_alone(data) -> None:
    spec = OrderSpec(shuffle=data.draw(st.booleans()), seed=4, window=data.draw(st.integers(1, 30)),
                     lanes=data.draw(st.integers(1, 4)))  # fmt: skip
    orders = []
    for number in range(data.draw(st.integers(1, 5))):
        counts = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))
        bounds = np.concatenate([[0], np.cumsum([counts[0] + 9, *counts])])
        most = int(bounds[-1])
        left_out = np.array(sorted(data.draw(st.sets(st.integers(0, most - 1), max_size=8))), int)
        orders.append(StreamOrder(spec, bounds=kept_bounds(bounds, left_out), stream=number,
                                  left_out=left_out))  # fmt: skip
    many = ManyOrders(orders)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    for first in (0, 40, 200, 40):  # passes come, go, and come again
        streams = rng.integers(0, len(orders), 150)
        draws = first + rng.integers(0, 60, 150)
        found = many.sequences(streams, draws)
        for stream, order in enumerate(orders):
            own = streams == stream
            if own.any():
                assert found[own].tolist() == order.sequences(draws[own]).tolist()
