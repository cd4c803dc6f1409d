"""The stream that each position of an epoch draws from, in fixed amounts or changing proportions.

An epoch is cut into rows of one position per canonical node; a row belongs to one stream. So the
draws of a stream rise with the position, and no sequence repeats before all came once. If the
proportions change during the epoch, rows are allocated in spans, each with its own proportions.

    spans of (2, 1) and (0, 2) rows, 2 positions per row, not shuffled: rows of streams 0 0 1, 1 1
    positions 0 to 3 are draws 0 to 3 of stream 0, positions 4 to 9 are draws 0 to 5 of stream 1
    with windows of 2 rows: windows 0 and 1 are rows 0 1 and 2; window 2 is rows 3 4
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from streaming_ext.base.arrays import Ints, ceil_div, ranges
from streaming_ext.base.errors import UsageError
from streaming_ext.order.order import OrderSpec, Recent, key_of, permutation
from streaming_ext.order.steps import Schedule, starts_of

METHODS: Final = ("random", "stratified", "per_stream", "device_per_stream")
WINDOW_ROWS: Final = 100  # proportions given in per cent are exact in every window
_ONE: Final = 1 << 64  # the denominator of all proportions: sums of whole numbers stay exact


class Mixture:
    """The positions of an epoch, allocated to streams.

    Attributes:
        spec: the settings of the order.
        rows: rows of each stream.
        amounts: positions of each stream.
    """

    def __init__(
        self, spec: OrderSpec, *spans: tuple[int, ...], row_size: int, window: int = WINDOW_ROWS
    ) -> None:
        """Allocate `span[s]` rows to stream s, span after span; one stream draws every position.

        Args:
            spec: the settings of the order.
            spans: rows of each stream, span after span.
            row_size: positions per row.
            window: rows in which the proportions hold, and which are shuffled together.
        """
        self.spec, self._row_size, self._window_rows = spec, row_size, window
        zero = (0,) * len(spans[0])
        self._spans = (*spans, zero)  # the last one begins at the end of the epoch
        # Rows, windows and rows of each stream before each span: (spans + 1,)
        sizes = np.array([sum(span) for span in spans])
        self._first_rows = np.append(0, np.cumsum(sizes))
        self._first_windows = np.append(0, np.cumsum(ceil_div(sizes, window)))
        self._before = list(accumulate(spans, _add, initial=zero))
        self.rows = self._before[-1]
        self.amounts = tuple(rows * row_size for rows in self.rows)
        self._windows: Recent[tuple[int, int], tuple[Ints, Ints]] = Recent(1024)

    def counts(self, row: int) -> tuple[int, ...]:
        """Count the rows of each stream among the first `row` rows of an epoch.

        Counts never fall, their sum is `row`, and they are exact after each span.
        """
        span = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        inside = row - int(self._first_rows[span])
        return _add(self._before[span], count_rows_before(self._spans[span], inside))

    def draws(self, epoch: int, positions: Ints, bases: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Find the stream and the draw of each position of an epoch.

        Args:
            epoch: the number of the epoch, part of the key.
            positions: positions from the start of the epoch: (n,).
            bases: draws of each stream before this epoch, in whole rows.

        Returns:
            streams and draws: (n,) each.
        """
        if len(self.rows) == 1:
            return np.zeros_like(positions), bases[0] + positions
        row, node = np.divmod(positions, self._row_size)
        windows = self._windows_of(row)
        streams, rows = np.empty_like(positions), np.empty_like(positions)
        for window in np.unique(windows).tolist():
            chosen = np.flatnonzero(windows == window)
            in_window = row[chosen] - self.rows_of(window).start
            window_streams, window_rows = self._window(epoch, window)
            streams[chosen] = window_streams[in_window]
            rows[chosen] = window_rows[in_window]
        return streams, np.asarray(bases, np.int64)[streams] + rows * self._row_size + node

    def position_of(self, epoch: int, stream: int, draw: int) -> int:
        """Find the position of a stream's draw in an epoch: the inverse of `draws`.

        Args:
            epoch: the number of the epoch, part of the key.
            stream: the number of the stream.
            draw: the number of the draw, from the beginning of the epoch.
        """
        wanted, node = divmod(draw, self._row_size)

        def rows_before(window: int) -> int:
            return self.counts(self.rows_of(window).start)[stream]

        # The last window with no more than `wanted` rows before it.
        windows = range(int(self._first_windows[-1]))
        window = bisect_right(windows, wanted, key=rows_before) - 1
        streams, rows = self._window(epoch, window)
        inside = int(np.flatnonzero((streams == stream) & (rows == wanted))[0])
        return (self.rows_of(window).start + inside) * self._row_size + node

    def received(self, epoch: int, positions: int) -> tuple[int, ...]:
        """Count the draws of each stream among the first `positions` positions."""
        counts = list(self.consumed(epoch, positions))
        row, node = divmod(positions, self._row_size)
        if node:
            stream = int(self._streams_before(epoch, row + 1)[-1])
            counts[stream] -= self._row_size - node
        return tuple(counts)

    def consumed(self, epoch: int, positions: int) -> tuple[int, ...]:
        """Count the draws of each stream as `received` does, rounded up to whole rows."""
        row = min(ceil_div(positions, self._row_size), sum(self.rows))
        own = self._streams_before(epoch, row)
        counts = np.bincount(own, minlength=len(self.rows)) + self.counts(row - len(own))
        return tuple((counts * self._row_size).tolist())

    def _streams_before(self, epoch: int, row: int) -> Ints:
        """Find the streams of the rows before `row`, in the window of the last of them: (rows,)."""
        if not row:
            return np.empty(0, np.int64)
        window = int(self._windows_of(np.array(row - 1)))
        return self._window(epoch, window)[0][: row - self.rows_of(window).start]

    def _window(self, epoch: int, window: int) -> tuple[Ints, Ints]:
        return self._windows.get_or_make((epoch, window), lambda: _window(self, epoch, window))

    def _windows_of(self, rows: Ints) -> Ints:
        """Find the window of each row: (rows,)."""
        span = np.searchsorted(self._first_rows, rows, side="right") - 1
        inside = rows - self._first_rows[span]
        windows: Ints = self._first_windows[span] + inside // self._window_rows
        return windows

    def rows_of(self, window: int) -> range:
        """Find the rows of a window, which lies within one span."""
        span = int(np.searchsorted(self._first_windows, window, side="right")) - 1
        inside = (window - int(self._first_windows[span])) * self._window_rows
        first = int(self._first_rows[span]) + inside
        return range(first, min(first + self._window_rows, int(self._first_rows[span + 1])))


def _window(mixture: Mixture, epoch: int, window: int) -> tuple[Ints, Ints]:
    """Find the stream of each row of a window, and its number in the stream: (rows,) each."""
    own, spec = mixture.rows_of(window), mixture.spec
    before = np.array(mixture.counts(own.start))
    counts = mixture.counts(own.stop) - before
    streams = np.repeat(np.arange(len(counts)), counts)
    if spec.shuffle:
        streams = streams[permutation(len(streams), key_of(spec.seed, 2, epoch, window))]
    # The sort is stable, so each stream's rows rise with the position.
    rows = np.empty_like(streams)
    rows[np.argsort(streams, kind="stable")] = ranges(before, counts)
    return streams, rows


def count_rows_before(span: tuple[int, ...], row: int) -> tuple[int, ...]:
    """Count the rows of each stream among the first `row` rows of a span.

    Rows are split between the first stream and all others, then between the second and all after
    it, and so on. Counts never fall as `row` rises.

        span (4, 2, 1), row 3: stream 0 has 3 * 4 // 7 = 1, the others have 2 of their 3 rows
        stream 1 has 2 * 2 // 3 = 1, stream 2 the rest: (1, 1, 1)
    """
    rest, total = row, sum(span)
    counts = []
    for own in span:
        count = rest * own // total if total else 0
        counts.append(count)
        rest, total = rest - count, total - own
    return tuple(counts)


def _add(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixing:
    """The proportions of the streams, by the tokens of training so far.

    Attributes:
        proportions: the schedule of each stream, relative to the others.
        max_repeats: the most passes over each stream in all of training; None for no limit.
    """

    proportions: tuple[Schedule, ...]
    max_repeats: tuple[Fraction | None, ...]

    def __post_init__(self) -> None:
        for start in starts_of(self.proportions):
            if not any(each.at(start) for each in self.proportions):
                raise UsageError(
                    f"All streams have the proportion 0 at token {start:,}: raise one."
                )

    def identity(self) -> dict[str, Any]:
        """Name the settings for a state."""
        names: dict[str, Any] = {"proportions": [*map(str, self.proportions)]}
        limits = [None if limit is None else str(limit) for limit in self.max_repeats]
        if any(limits):
            names |= {"max_repeats": limits, "at_max_repeats": "error"}
        return names

    def changes(self, tokens: int, stop: int) -> list[int]:
        """Find the starts of schedule entries after `tokens` and before `stop`."""
        return [start for start in starts_of(self.proportions) if tokens < start < stop]

    def room(self, sizes: Sequence[int], before: Sequence[int], *, row: int) -> list[float]:
        """Count the rows that each stream may still get; infinity for any number.

        Args:
            sizes: sequences of each stream.
            before: sequences that were drawn from each stream.
            row: sequences per row.
        """
        return [
            math.inf if limit is None else (int(limit * size) - drawn) // row
            for limit, size, drawn in zip(self.max_repeats, sizes, before, strict=True)
        ]

    def spans(
        self, *, tokens: int, rows: int, row_tokens: int, room: Sequence[float]
    ) -> list[tuple[int, ...]]:
        """Allocate rows to the streams, span after span; see `Mixture`.

        After any number of spans, each stream has the rows of its proportions to within one.

        Args:
            tokens: tokens of training before the first row.
            rows: the number of rows.
            row_tokens: tokens per row.
            room: rows that each stream may still get.

        Raises:
            UsageError: a stream would go beyond its limit.
        """
        zero = (0,) * len(self.proportions)
        wanted, given = zero, zero  # `wanted` in parts of `_ONE`
        spans: list[tuple[int, ...]] = []
        changes = self.changes(tokens, tokens + rows * row_tokens)
        edges = [0, *(min(rows, ceil_div(each - tokens, row_tokens)) for each in changes), rows]
        for row, stop in pairwise(edges):
            if row == stop:
                continue
            at = tokens + row * row_tokens
            weights = [proportion.at(at) for proportion in self.proportions]
            total = sum(weights)
            parts = [max(1, int(each * _ONE / total)) if each else 0 for each in weights]
            span = allocate_rows(stop - row, parts, wanted, given)
            wanted = _add(wanted, tuple((stop - row) * part for part in parts))
            given = _add(given, span)
            over = [n for n, own in enumerate(span) if own and given[n] > room[n]]
            if over:
                raise UsageError(
                    f"After token {at:,} of training, stream {', '.join(map(str, over))} has "
                    "reached `max_repeats`. Lower epoch_size or its proportion, or raise "
                    "max_repeats."
                )
            spans.append(span)
        return spans


def allocate_rows(
    size: int, parts: Sequence[int], wanted: Sequence[int], given: Sequence[int]
) -> tuple[int, ...]:
    """Allocate `size` rows: each stream gets what it lacks, rounded so that the sum is `size`.

        3 rows in proportions of 1/2, 1/4 and 1/4, after one row that stream 0 got
        wanted by now: 1/2 + 3/2 = 2, 1/4 + 3/4 = 1, 1; given: 1, 0, 0; lacking: 1, 1, 1

    Args:
        size: the number of rows.
        parts: the proportion of each stream, in parts of `_ONE`.
        wanted: rows of each stream that its proportions asked for before, in parts of `_ONE`.
        given: rows that each stream got before.
    """
    lacking = [
        before + size * part - own * _ONE
        for before, part, own in zip(wanted, parts, given, strict=True)
    ]
    taking = [number for number, part in enumerate(parts) if part]
    counts = [0] * len(parts)
    for number in taking:
        counts[number] = max(0, lacking[number] // _ONE)

    def still_lacking(number: int) -> int:
        return lacking[number] - counts[number] * _ONE

    while (rest := size - sum(counts)) > 0:
        for number in sorted(taking, key=still_lacking, reverse=True)[:rest]:
            counts[number] += 1
    while sum(counts) > size:
        counts[min((each for each in taking if counts[each]), key=still_lacking)] -= 1
    return tuple(counts)
