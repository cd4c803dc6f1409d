"""A pass over a stream that grew during the pass.

The sequences of an older generation are the first ones of the newer, so the positions of its pass
that were read stay as they were. After them come the rest of that pass, in its order, and the new
sequences, in the order of a pass over them alone, interleaved in rows of canonical nodes:

    a pass over 6 sequences stands at position 2 when 4 more come: positions 0 and 1 are those of
    the old pass, positions 2 to 9 its other four and the four new ones, in turn
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.format.index import TokenIndex
from streaming_ext.format.shard import sequence_starts
from streaming_ext.order.order import OrderSpec, PassOrder, Recent, StreamOrders
from streaming_ext.order.state import Growth

_AT_ONCE = 2**18  # draws that are searched


class GrownOrders(StreamOrders):
    """All passes over some streams; if it is one stream, it may have been extended during a pass.

    Attributes:
        earlier: see `earlier_of`.
    """

    def __init__(self, spec: OrderSpec, *, earlier: Mapping[str, Ints], **streams: Any) -> None:
        """Lay out the streams.

        Args:
            spec: what decides the order.
            earlier: bounds of the older generations, by the fingerprints of their indexes.
            streams: of the newest generation, see `StreamOrders`.
        """
        super().__init__(spec, **streams)
        self.earlier = earlier
        self._grown: Recent[Growth, list[_Generation]] = Recent(1)

    def sequences(self, streams: Ints, draws: Ints, growth: Growth | None = None) -> Ints:
        """The sequences of some draws, counted in passes of the newest generation."""
        found = super().sequences(streams, draws)
        if growth is not None:
            positions = draws - growth.number * int(self.sizes[0])
            inside = (positions >= 0) & (positions < self.sizes[0])
            generations = self._grown.get_or_make(growth, lambda: self._laid_out(growth))
            found[inside] = _in_pass(generations, positions[inside])
        return found

    def draws_of(
        self, stream: int, sequences: Ints, draws: range, growth: Growth | None = None
    ) -> list[int]:
        """The draws of some sequences within a range of draws.

        All draws are searched if the pass grew: it has no inverse.
        """
        if growth is None:
            return super().draws_of(stream, sequences, draws)
        found: list[int] = []
        for begin in range(draws.start, draws.stop, _AT_ONCE):
            numbers = np.arange(begin, min(begin + _AT_ONCE, draws.stop))
            own = self.sequences(np.full_like(numbers, stream), numbers, growth)
            found += numbers[np.isin(own, sequences)].tolist()
        return found

    def still(self, growth: Growth | None, draw: int) -> Growth | None:
        """The growth, if a draw or a later one may be of the grown pass."""
        if growth is None or draw >= (growth.number + 1) * self.sizes[0]:
            return None
        return growth

    def _laid_out(self, growth: Growth) -> "list[_Generation]":
        """The generations that a pass was in, the oldest first."""
        spec, number, found = self._spec, growth.number, []
        before, seen = 0, 0
        older = [(self.earlier[fingerprint], received) for fingerprint, received in growth.steps]
        for bounds, received in [*older, (self._bounds[0], 0)]:
            added = (
                np.unique(np.append(before, bounds[bounds > before])) - before if before else bounds
            )
            order = PassOrder.of(spec, bounds=added, number=number)
            found.append(_Generation(order, number * int(added[-1]), before, seen))
            before, seen = int(bounds[-1]), received
        return found


class _Generation(NamedTuple):
    """What one generation added to a pass.

    Attributes:
        order: of the pass over the new sequences alone.
        first_draw: of that pass.
        before: sequences of the generations before it.
        seen: sequences of the pass that training had received before it.
    """

    order: PassOrder
    first_draw: int
    before: int
    seen: int


def _in_pass(generations: Sequence[_Generation], positions: Ints) -> Ints:
    """The sequences at some positions of a pass that was in some generations."""
    *older, (order, first_draw, before, seen) = generations
    if not older:
        return order.sequences(first_draw + positions)
    early = positions < seen
    is_old, numbers = laid_in(
        np.maximum(positions - seen, 0),
        left=before - seen,
        added=int(order.sizes[0]),
        row=order.spec.canonical_nodes,
    )
    is_old |= early
    result = np.empty_like(positions)
    result[is_old] = _in_pass(older, np.where(early, positions, seen + numbers)[is_old])
    result[~is_old] = order.sequences(first_draw + numbers[~is_old]) + before
    return result


def laid_in(positions: Ints, *, left: int, added: int, row: int) -> tuple[Flags, Ints]:
    """Two lists interleaved evenly in rows; the rest that makes no row comes at the end.

    Args:
        positions: in [0, left + added): (positions,).
        left: length of the first list.
        added: length of the second one.
        row: positions of a row, all of one list.

    Returns:
        whether each position is of the first list, and which element it is: (positions,) each.
    """
    left_rows, added_rows = left // row, added // row
    rows = left_rows + added_rows
    number, inside = np.divmod(positions, row)
    before = number * left_rows // max(1, rows)  # rows of the first list
    is_left = (number + 1) * left_rows // max(1, rows) > before
    element = np.where(is_left, before, number - before) * row + inside
    tail = positions - rows * row  # after all rows
    in_tail, left_tail = tail >= 0, left - left_rows * row
    is_left = np.where(in_tail, tail < left_tail, is_left)
    of_tail = np.where(
        tail < left_tail, left_rows * row + tail, added_rows * row + tail - left_tail
    )
    return is_left, np.where(in_tail, of_tail, element)


def earlier_of(indexes: Sequence[TokenIndex], length: int, *, plain: bool) -> dict[str, Ints]:
    """The bounds of the older generations of the one stream, by the fingerprints of their indexes.

    There are none of several streams, or of packed rows. The newest generation is left out.

    Args:
        indexes: of the streams.
        length: tokens of a sequence.
        plain: whether sequences are cut out of the stream, and none is left out.
    """
    if len(indexes) > 1 or not plain or indexes[0].manifest is None:
        return {}
    index, manifest = indexes[0], indexes[0].manifest
    # An extension may leave a split as it was: then both generations have one index.
    return {
        summary.index.xxh128: sequence_starts(index.token_starts[: summary.shards + 1], length)
        for each in manifest.generations
        for split, summary in each.splits.items()
        if split == index.split and summary.index.xxh128 != index.index_hash
    }
