"""All passes over some streams, one of which may have grown during a pass.

A newer generation begins with the sequences of the older one, so the positions that were read stay
as they were. After them come the rest of the old pass, in its order, and the new sequences, in the
order of a pass over them alone. Both are interleaved in rows of one position per canonical node:

    a pass over 6 sequences, in the order 5 0 3 1 4 2, stands at position 2 when 4 more come
    a pass over the new ones alone has the order 8 6 9 7; rows have one position
    the grown pass: 5 0 | 8 3 6 1 9 4 7 2
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from streaming_ext.base.arrays import Flags, Ints, ceil_div
from streaming_ext.format.index import TokenIndex
from streaming_ext.format.shard import sequence_starts
from streaming_ext.order.order import OrderSpec, PassOrder, Recent
from streaming_ext.order.state import Growth

_AT_ONCE = 2**18  # draws that are searched together


class StreamOrders:
    """All passes over some streams: draw d of a stream is in its pass d // size.

    Attributes:
        spec: the settings of the order.
        bounds: the groups of each stream; their numbers count only sequences that are kept.
        sizes: sequences of a pass over each stream: (streams,).
        earlier: see `earlier_of`.
    """

    def __init__(
        self,
        spec: OrderSpec,
        *,
        bounds: Sequence[Ints],
        left_out: Sequence[Ints] | None = None,
        earlier: Mapping[str, Ints] = {},
    ) -> None:
        """Lay out the streams.

        Args:
            spec: the settings of the order.
            bounds: the groups of each stream, see `PassOrder`.
            left_out: sequences of each stream that no pass holds, sorted.
            earlier: bounds of the older generations, by the fingerprints of their indexes.
        """
        self.spec, self.earlier = spec, earlier
        self._left_out = left_out or [np.empty(0, np.int64)] * len(bounds)
        self.bounds: list[Ints] = [
            own - np.searchsorted(out, own) for own, out in zip(bounds, self._left_out, strict=True)
        ]
        self.sizes: Ints = np.array([own[-1] for own in self.bounds], np.int64)
        # An epoch's end needs two passes of each stream.
        self._passes: Recent[tuple[int, int, int], PassOrder] = Recent(3 * len(bounds))
        self._grown: Recent[tuple[Growth, int], list[_Generation]] = Recent(1)
        # The passes of the last lookup, joined, with the code of each: pass * streams + stream.
        first = self._pass_order(0, 0, ())
        self._joined: tuple[Ints, PassOrder, tuple[int, ...]] = np.zeros(1, np.int64), first, ()
        # The number of kept sequences before each one that is left out: if 2 and 3 of five are left
        # out, 2 and 2. So the kept sequences 0, 1 and 2 are sequences 0, 1 and 2 + 2 on disk.
        self._kept_before = {
            stream: own - np.arange(len(own))
            for stream, own in enumerate(self._left_out)
            if len(own)
        }

    def sequences(
        self,
        streams: Ints,
        draws: Ints,
        growth: Growth | None = None,
        keys: tuple[int, ...] = (),
    ) -> Ints:
        """Find the sequences of some draws of some streams, in any order: (n,) each.

        Args:
            streams: the stream of each draw.
            draws: the draws, counted in passes of the newest generation.
            growth: the growth of a single stream.
            keys: see `Cursor`.
        """
        codes = draws // self.sizes[streams] * len(self.sizes) + streams
        known, joined, of = self._joined  # another thread may replace them meanwhile
        passes = np.minimum(np.searchsorted(known, codes), len(known) - 1)
        if of != keys or (known[passes] != codes).any():
            known, passes = np.unique(codes, return_inverse=True)
            wanted = (divmod(code, len(self.sizes)) for code in known.tolist())
            joined = PassOrder.joined(
                [self._pass_order(stream, each, keys) for each, stream in wanted]
            )
            self._joined = known, joined, keys
        found = joined.sequences(draws, passes)
        for stream, kept_before in self._kept_before.items():
            own = streams == stream
            found[own] += np.searchsorted(kept_before, found[own], side="right")
        if growth is not None:
            positions = draws - growth.number * int(self.sizes[0])
            inside = (positions >= 0) & (positions < self.sizes[0])
            key = _key(0, keys)
            generations = self._grown.get_or_make(
                (growth, key), lambda: _generations(self, growth, key)
            )
            found[inside] = _sequences_of_pass(generations, positions[inside])
        return found

    def draws_of(
        self,
        stream: int,
        sequences: Ints,
        draws: range,
        growth: Growth | None = None,
        keys: tuple[int, ...] = (),
    ) -> list[int]:
        """Find the draws of some sequences within a range of draws.

        A pass that grew has no inverse, so all draws are searched.
        """
        found: list[int] = []
        if growth is not None:
            for begin in range(draws.start, draws.stop, _AT_ONCE):
                numbers = np.arange(begin, min(begin + _AT_ONCE, draws.stop))
                own = self.sequences(np.full_like(numbers, stream), numbers, growth, keys)
                found += numbers[np.isin(own, sequences)].tolist()
            return found
        left_out, size = self._left_out[stream], int(self.sizes[stream])
        sequences = sequences[~np.isin(sequences, left_out)]
        kept = sequences - np.searchsorted(left_out, sequences)
        for number in range(draws.start // size, ceil_div(draws.stop, size)):
            found += self._pass_order(stream, number, keys).draws_of(kept[kept < size]).tolist()
        return [draw for draw in found if draw in draws]

    def growth_from(self, growth: Growth | None, draw: int) -> Growth | None:
        """Return the growth if the grown pass holds a draw or a later one, else None."""
        if growth is None or draw >= (growth.number + 1) * self.sizes[0]:
            return None
        return growth

    def _pass_order(self, stream: int, number: int, keys: tuple[int, ...]) -> PassOrder:
        key = _key(stream, keys)
        return self._passes.get_or_make(
            (stream, number, key),
            lambda: PassOrder.of(self.spec, bounds=self.bounds[stream], stream=key, number=number),
        )


def _key(stream: int, keys: tuple[int, ...]) -> int:
    return keys[stream] if keys else stream


class _Generation(NamedTuple):
    """The sequences that one generation added to a pass.

    Attributes:
        order: the pass over the new sequences alone.
        first_draw: the first draw of that pass.
        before: sequences of the generations before it.
        received: sequences of the pass that training had received before it.
    """

    order: PassOrder
    first_draw: int
    before: int
    received: int


def _generations(orders: StreamOrders, growth: Growth, key: int) -> list[_Generation]:
    """Lay out what each generation added to a pass, the oldest first."""
    found = []
    before, received = np.zeros(1, np.int64), 0
    older = [(orders.earlier[fingerprint], count) for fingerprint, count in growth.steps]
    for bounds, count in [*older, (orders.bounds[0], 0)]:
        old = int(before[-1])
        # A group may begin among the old sequences: its new ones form a group of their own.
        added = np.unique(np.maximum(bounds, old)) - old if old else bounds
        order = PassOrder.of(orders.spec, bounds=added, stream=key, number=growth.number)
        found.append(_Generation(order, growth.number * int(added[-1]), old, received))
        before, received = bounds, count
    return found


def _sequences_of_pass(generations: Sequence[_Generation], positions: Ints) -> Ints:
    """Find the sequences at some positions of a pass over one or more generations."""
    *older, (order, first_draw, before, received) = generations
    if not older:
        return order.sequences(first_draw + positions)
    after = positions - received
    is_old, numbers = interleave(
        np.maximum(after, 0),
        first=before - received,
        second=int(order.sizes[0]),
        row=order.spec.canonical_nodes,
    )
    is_old |= after < 0
    result = np.empty_like(positions)
    of_old = received + np.where(after < 0, after, numbers)
    result[is_old] = _sequences_of_pass(older, of_old[is_old])
    result[~is_old] = order.sequences(first_draw + numbers[~is_old]) + before
    return result


def interleave(positions: Ints, *, first: int, second: int, row: int) -> tuple[Flags, Ints]:
    """Interleave two lists evenly in rows; the rest that makes no row comes at the end.

        lists a b c d e and v w x, rows of 2: the first list has 2 rows, both together have 3
        of the first 1, 2, 3 rows, it has 1 * 2 // 3 = 0, 2 * 2 // 3 = 1, 3 * 2 // 3 = 2
        so the rows are v w, a b, c d; the rest, e and x, comes at the end: v w a b c d e x

    Args:
        positions: positions among both lists: (positions,).
        first: the length of the first list.
        second: the length of the second list.
        row: positions per row, all of one list.

    Returns:
        True for each position of the first list, and the number of its element: (positions,) each.
    """
    first_rows, second_rows = first // row, second // row
    rows = first_rows + second_rows
    number, inside = np.divmod(positions, row)
    before = number * first_rows // max(1, rows)  # rows of the first list
    is_first = (number + 1) * first_rows // max(1, rows) > before
    element = np.where(is_first, before, number - before) * row + inside
    tail = positions - rows * row  # after all rows
    in_tail, first_tail = tail >= 0, first - first_rows * row
    is_first = np.where(in_tail, tail < first_tail, is_first)
    of_tail = tail + np.where(tail < first_tail, first_rows * row, second_rows * row - first_tail)
    return is_first, np.where(in_tail, of_tail, element)


def earlier_of(indexes: Sequence[TokenIndex], length: int, *, plain: bool) -> dict[str, Ints]:
    """Find the bounds of the older generations of a single stream, by the hashes of their indexes.

    Several streams, and packed rows, have none. The newest generation is left out.

    Args:
        indexes: the indexes of the streams.
        length: tokens per sequence.
        plain: True if sequences are cut out of the stream, and none is left out.
    """
    if len(indexes) > 1 or not plain or indexes[0].manifest is None:
        return {}
    index, manifest = indexes[0], indexes[0].manifest
    # An extension may leave a split as it was: then both generations have the same index.
    return {
        summary.index.xxh128: sequence_starts(index.token_starts[: summary.shards + 1], length)
        for each in manifest.generations
        for split, summary in each.splits.items()
        if split == index.split and summary.index.xxh128 != index.index_hash
    }
