"""The orders of several streams, looked up at once: a mixture of a hundred costs as one of two."""

from collections.abc import Sequence

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.sampler.orders.order import StreamOrder, key_of, permute


class ManyOrders:
    """Gives what `StreamOrder.sequences` gives, for draws of any streams."""

    def __init__(self, orders: Sequence[StreamOrder]) -> None:
        """Take the orders of all streams."""
        self._orders = tuple(orders)
        self._sizes: Ints = np.array([order.size for order in orders], np.int64)
        self._passes: _Passes | None = None
        # Of all streams end to end; in between, room for what is looked up in each.
        self._room: Ints = np.concatenate([[0], np.cumsum(self._sizes + 1)])[:-1]
        kept = [order.kept_before for order in orders]
        self._kept_before = np.concatenate(
            [own + room for own, room in zip(kept, self._room.tolist(), strict=True)]
        )
        counts = [len(own) for own in kept]
        self._left_out: Ints = np.cumsum(counts) - counts

    def sequences(self, streams: Ints, draws: Ints) -> Ints:
        """The sequences of some draws of some streams: (n,) each."""
        # One number for a pass of a stream.
        codes = draws // self._sizes[streams] * len(self._orders) + streams
        passes = self._passes  # another thread may look ahead meanwhile
        at = None if passes is None else passes.find(codes)
        if passes is None or at is None:
            passes = self._passes = _Passes(self._orders, np.unique(codes))
            at = np.searchsorted(passes.codes, codes)
        found = passes.sequences(at, draws)
        if self._kept_before.size:
            before = np.searchsorted(self._kept_before, found + self._room[streams], side="right")
            found = found + before - self._left_out[streams]
        return found


class _Passes:
    """Some passes of some streams, their arrays end to end; see `PassOrder` for the arithmetic."""

    def __init__(self, orders: Sequence[StreamOrder], codes: Ints) -> None:
        self.codes = codes
        self._spec = orders[0].spec
        self._numbers, self._streams = np.divmod(codes, len(orders))
        passes = [
            orders[stream].at_pass(number)
            for stream, number in zip(self._streams.tolist(), self._numbers.tolist(), strict=True)
        ]
        # (passes, lanes) each
        self._lane_first = np.stack([each.lane_first for each in passes])
        self._lane_length = np.stack([each.lane_length for each in passes])
        sizes = np.array([each.size for each in passes], np.int64)
        offsets = np.cumsum(sizes) - sizes
        self._lane_start = np.stack([each.lane_start for each in passes]) + offsets[:, None]
        # of all units: (units,) each
        self._firsts = np.concatenate([each.firsts for each in passes])
        self._starts = np.concatenate(
            [each.starts[:-1] + offset for each, offset in zip(passes, offsets, strict=True)]
        )

    def find(self, codes: Ints) -> Ints | None:
        """Which passes they are: (n,); None where one is missing."""
        at = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return at if (self.codes[at] == codes).all() else None

    def sequences(self, at: Ints, draws: Ints) -> Ints:
        """The sequences of some draws, each of the pass of a number here."""
        spec = self._spec
        lane = draws % spec.lanes
        depth = (draws - self._lane_first[at, lane]) // spec.lanes
        if spec.shuffle:
            window = depth // spec.window
            begin = window * spec.window
            sizes = np.minimum(spec.window, self._lane_length[at, lane] - begin)
            keys = key_of(spec.seed, self._streams[at], self._numbers[at], 1, lane, window)
            depth = begin + permute(depth - begin, sizes, keys)
        place = self._lane_start[at, lane] + depth
        unit = np.searchsorted(self._starts, place, side="right") - 1
        result: Ints = self._firsts[unit] + place - self._starts[unit]
        return result
