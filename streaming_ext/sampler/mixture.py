"""Which stream each place of an epoch draws from, so that every window holds the proportions.

An epoch is cut into rows of one place a lane; a row belongs to one stream. So the draws of a
stream go up with the place, and no sequence of a stream comes twice before all came once.
"""

from typing import Final

import numpy as np

from streaming_ext.sampler.order import Ints, key_of, permutation

WINDOW_ROWS: Final = 100  # proportions given in per cent are exact in every window


class Mixture:
    """The places of an epoch dealt out to streams."""

    def __init__(self, rows: tuple[int, ...], *, lanes: int, seed: int, shuffle: bool) -> None:
        """Deal `rows[s]` rows an epoch to stream s; with one stream its places are its draws."""
        self.rows = rows
        self.lanes = lanes
        self._seed = seed
        self._shuffle = shuffle
        self._windows: dict[tuple[int, int], tuple[Ints, Ints]] = {}

    def counts(self, row: int) -> tuple[int, ...]:
        """How many of the first `row` rows of an epoch belong to each stream.

        Dealt to the first stream and all others, then to the second and those behind it, and so
        on: each count only grows, their sum is `row`, and after the last row all are exact.
        """
        rest, total = row, sum(self.rows)
        counts = []
        for rows in self.rows:
            count = rest * rows // total if total else 0
            counts.append(count)
            rest, total = rest - count, total - rows
        return tuple(counts)

    def draws(self, epoch: int, places: Ints, bases: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Stream and draw of each place of an epoch.

        Args:
            epoch: part of the key.
            places: shape (n,), from the start of the epoch.
            bases: draws of each stream before this epoch, whole rows of them.

        Returns:
            streams and draws, each of shape (n,).
        """
        row, lane = np.divmod(places, self.lanes)
        windows = row // WINDOW_ROWS
        streams, rows = np.empty_like(places), np.empty_like(places)
        for window in np.unique(windows).tolist():
            chosen = np.flatnonzero(windows == window)
            in_window = row[chosen] - window * WINDOW_ROWS
            window_streams, window_rows = self._window(epoch, window)
            streams[chosen] = window_streams[in_window]
            rows[chosen] = window_rows[in_window]
        return streams, np.asarray(bases, np.int64)[streams] + rows * self.lanes + lane

    def place_of(self, epoch: int, stream: int, draw: int) -> int:
        """The place of an epoch that a draw of a stream is at: `draws` backwards.

        Args:
            epoch: part of the key.
            stream: which one.
            draw: counted from the beginning of the epoch.
        """
        wanted, lane = divmod(draw, self.lanes)
        low, high = 0, -(-sum(self.rows) // WINDOW_ROWS)
        while high - low > 1:  # the last window with no more than `wanted` rows before it
            middle = (low + high) // 2
            if self.counts(middle * WINDOW_ROWS)[stream] <= wanted:
                low = middle
            else:
                high = middle
        streams, rows = self._window(epoch, low)
        inside = int(np.flatnonzero((streams == stream) & (rows == wanted))[0])
        return (low * WINDOW_ROWS + inside) * self.lanes + lane

    def seen(self, epoch: int, places: int) -> tuple[int, ...]:
        """Draws of each stream after the first `places` places, to the last one."""
        counts = list(self.consumed(epoch, places))
        row, lane = divmod(places, self.lanes)
        if lane:
            streams, _ = self._window(epoch, row // WINDOW_ROWS)
            counts[int(streams[row % WINDOW_ROWS])] -= self.lanes - lane
        return tuple(counts)

    def consumed(self, epoch: int, places: int) -> tuple[int, ...]:
        """Draws of each stream after the first `places` places, rounded up to whole rows."""
        row = -(-places // self.lanes)
        window, inside = divmod(row, WINDOW_ROWS)
        counts = np.array(self.counts(window * WINDOW_ROWS))
        if inside:
            streams, _ = self._window(epoch, window)
            counts += np.bincount(streams[:inside], minlength=len(self.rows))
        return tuple((counts * self.lanes).tolist())

    def _window(self, epoch: int, window: int) -> tuple[Ints, Ints]:
        """Stream and row within the stream for each row of a window: (rows,) each."""
        found = self._windows.get((epoch, window))
        if found is not None:
            return found
        first = window * WINDOW_ROWS
        before = self.counts(first)
        after = self.counts(min(first + WINDOW_ROWS, sum(self.rows)))
        each = np.array(after) - np.array(before)
        streams = np.repeat(np.arange(len(each)), each)
        if self._shuffle:
            streams = streams[permutation(len(streams), key_of(self._seed, 2, epoch, window))]
        rows = np.empty_like(streams)
        for stream, (start, count) in enumerate(zip(before, each.tolist(), strict=True)):
            rows[streams == stream] = start + np.arange(count)
        for old in list(self._windows.copy())[:-1024]:  # another thread may look ahead meanwhile
            self._windows.pop(old, None)
        self._windows[epoch, window] = (streams, rows)
        return streams, rows
