"""Which stream each position of an epoch draws from, so that every window holds the proportions.

An epoch is cut into rows of one position a canonical node; a row belongs to one stream. So the
draws of a stream rise with the position, and no sequence comes twice before all came once. If the
proportions change during the epoch, rows are dealt out in spans, each with its own proportions.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import Final

import numpy as np

from streaming_ext.base.arrays import Ints, ranges
from streaming_ext.order.order import Recent, key_of, permutation

WINDOW_ROWS: Final = 100  # proportions given in per cent are exact in every window


class Mixture:
    """The positions of an epoch dealt out to streams."""

    def __init__(
        self,
        *spans: tuple[int, ...],
        canonical_nodes: int,
        seed: int,
        shuffle: bool,
        window: int = WINDOW_ROWS,
    ) -> None:
        """Deal `span[s]` rows to stream s, span after span; with one stream positions are draws.

        Args:
            spans: one behind the other.
            canonical nodes: positions a row.
            seed, shuffle: see `OrderSpec`.
            window: rows that hold the proportions, and are shuffled among each other.
        """
        self._window_rows = window
        self.rows = tuple(map(sum, zip(*spans, strict=True)))
        self.canonical_nodes = canonical_nodes
        self._seed = seed
        self._shuffle = shuffle
        self._spans = spans
        sizes = [sum(span) for span in spans]
        # Rows, windows and rows of each stream before each span, and behind the last: (spans + 1,)
        self._first_rows = np.concatenate([[0], np.cumsum(sizes)])
        windows = [-(-size // window) for size in sizes]
        self._first_windows = np.concatenate([[0], np.cumsum(windows)])
        zero = (0,) * len(self.rows)
        self._before = list(accumulate(spans, _added, initial=zero))
        self._windows: Recent[tuple[int, int], tuple[Ints, Ints]] = Recent(1024)

    def counts(self, row: int) -> tuple[int, ...]:
        """How many of the first `row` rows of an epoch belong to each stream.

        Within a span dealt to the first stream and all others, then to the second and those behind
        it, and so on: counts only grow, their sum is `row`, and behind each span all are exact.
        """
        span = self._span_of(row)
        if span == len(self._spans):
            return self.rows
        return _added(self._before[span], dealt(self._spans[span], row - self._first_row(span)))

    def draws(self, epoch: int, positions: Ints, bases: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Stream and draw of each position of an epoch.

        Args:
            epoch: part of the key.
            positions: shape (n,), from the start of the epoch.
            bases: draws of each stream before this epoch, whole rows of them.

        Returns:
            streams and draws, each of shape (n,).
        """
        row, node = np.divmod(positions, self.canonical_nodes)
        windows = self._windows_of(row)
        streams, rows = np.empty_like(positions), np.empty_like(positions)
        for window in np.unique(windows).tolist():
            chosen = np.flatnonzero(windows == window)
            in_window = row[chosen] - self._rows_of(window).start
            window_streams, window_rows = self._window(epoch, window)
            streams[chosen] = window_streams[in_window]
            rows[chosen] = window_rows[in_window]
        return streams, np.asarray(bases, np.int64)[streams] + rows * self.canonical_nodes + node

    def position_of(self, epoch: int, stream: int, draw: int) -> int:
        """The position of an epoch that a draw of a stream is at: `draws` backwards.

        Args:
            epoch: part of the key.
            stream: which one.
            draw: counted from the beginning of the epoch.
        """
        wanted, node = divmod(draw, self.canonical_nodes)
        # The last window with no more than `wanted` rows before it.
        windows = range(int(self._first_windows[-1]))
        window = (
            bisect_right(
                windows, wanted, key=lambda each: self.counts(self._rows_of(each).start)[stream]
            )
            - 1
        )
        streams, rows = self._window(epoch, window)
        inside = int(np.flatnonzero((streams == stream) & (rows == wanted))[0])
        return (self._rows_of(window).start + inside) * self.canonical_nodes + node

    def seen(self, epoch: int, positions: int) -> tuple[int, ...]:
        """Draws of each stream after the first `positions` positions, to the last one."""
        counts = list(self.consumed(epoch, positions))
        row, node = divmod(positions, self.canonical_nodes)
        if node:
            window = self._window_of(row)
            streams, _ = self._window(epoch, window)
            counts[int(streams[row - self._rows_of(window).start])] -= self.canonical_nodes - node
        return tuple(counts)

    def consumed(self, epoch: int, positions: int) -> tuple[int, ...]:
        """Draws of each stream after the first `positions` positions, rounded up to whole rows."""
        row = -(-positions // self.canonical_nodes)
        if row >= self._first_rows[-1]:
            return tuple(count * self.canonical_nodes for count in self.rows)
        window = self._window_of(row)
        begin = self._rows_of(window).start
        counts = np.array(self.counts(begin))
        if row > begin:
            streams, _ = self._window(epoch, window)
            counts += np.bincount(streams[: row - begin], minlength=len(self.rows))
        return tuple((counts * self.canonical_nodes).tolist())

    def _span_of(self, row: int) -> int:
        return int(np.searchsorted(self._first_rows, row, side="right")) - 1

    def _first_row(self, span: int) -> int:
        return int(self._first_rows[span])

    def _windows_of(self, rows: Ints) -> Ints:
        """The window of each row: (rows,)."""
        span = np.searchsorted(self._first_rows, rows, side="right") - 1
        inside = rows - self._first_rows[span]
        windows: Ints = self._first_windows[span] + inside // self._window_rows
        return windows

    def _window_of(self, row: int) -> int:
        return int(self._windows_of(np.array(row)))

    def _rows_of(self, window: int) -> range:
        """The rows of a window, none of which is in two spans."""
        span = int(np.searchsorted(self._first_windows, window, side="right")) - 1
        inside = (window - int(self._first_windows[span])) * self._window_rows
        first = self._first_row(span) + inside
        return range(first, min(first + self._window_rows, self._first_row(span + 1)))

    def _window(self, epoch: int, window: int) -> tuple[Ints, Ints]:
        """Stream and row within the stream for each row of a window: (rows,) each."""
        return self._windows.get_or_make((epoch, window), lambda: self._make(epoch, window))

    def _make(self, epoch: int, window: int) -> tuple[Ints, Ints]:
        own = self._rows_of(window)
        before, after = self.counts(own.start), self.counts(own.stop)
        each = np.array(after) - np.array(before)
        streams = np.repeat(np.arange(len(each)), each)
        if self._shuffle:
            streams = streams[permutation(len(streams), key_of(self._seed, 2, epoch, window))]
        # By stream, and those of one in their order: each stream's rows rise with the position.
        rows = np.empty_like(streams)
        rows[np.argsort(streams, kind="stable")] = ranges(np.array(before), each)
        return streams, rows


def dealt(rows: tuple[int, ...], row: int) -> tuple[int, ...]:
    """How many of the first `row` rows belong to each stream, when `rows` of all do."""
    rest, total = row, sum(rows)
    counts = []
    for own in rows:
        count = rest * own // total if total else 0
        counts.append(count)
        rest, total = rest - count, total - own
    return tuple(counts)


def _added(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))
