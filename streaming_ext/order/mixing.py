"""Which stream each position of an epoch draws from, in fixed amounts or in changing proportions.

An epoch is cut into rows of one position a canonical node; a row belongs to one stream. So the
draws of a stream rise with the position, and no sequence comes twice before all came once. If the
proportions change during the epoch, rows are dealt out in spans, each with its own proportions.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from streaming_ext.base.arrays import Ints, ceil_div, ranges
from streaming_ext.base.errors import UsageError
from streaming_ext.order.order import Recent, key_of, permutation
from streaming_ext.order.steps import Schedule, starts_of

WINDOW_ROWS: Final = 100  # proportions given in per cent are exact in every window


class Mixture:
    """The positions of an epoch dealt out to streams.

    Attributes:
        rows: of each stream.
        amounts: positions of each stream.
    """

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
            spans: rows of each stream, span after span.
            canonical_nodes: positions a row.
            seed, shuffle: see `OrderSpec`.
            window: rows that hold the proportions, and are shuffled among each other.
        """
        self._window_rows = window
        self.canonical_nodes = canonical_nodes
        self._seed, self._shuffle = seed, shuffle
        zero = (0,) * len(spans[0])
        self._spans = (*spans, zero)  # the last one begins at the end of the epoch
        # Rows, windows and rows of each stream before each of them: (spans + 1,)
        sizes = [sum(span) for span in spans]
        self._first_rows = np.append(0, np.cumsum(sizes))
        self._first_windows = np.append(0, np.cumsum([ceil_div(size, window) for size in sizes]))
        self._before = list(accumulate(spans, _added, initial=zero))
        self.rows = self._before[-1]
        self.amounts = tuple(rows * canonical_nodes for rows in self.rows)
        self._windows: Recent[tuple[int, int], tuple[Ints, Ints]] = Recent(1024)

    def counts(self, row: int) -> tuple[int, ...]:
        """How many of the first `row` rows of an epoch belong to each stream.

        Within a span dealt to the first stream and all others, then to the second and all after
        it, and so on: counts only grow, their sum is `row`, and after each span all are exact.
        """
        span = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        inside = row - int(self._first_rows[span])
        return _added(self._before[span], dealt(self._spans[span], inside))

    def draws(self, epoch: int, positions: Ints, bases: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Stream and draw of each position of an epoch.

        Args:
            epoch: part of the key.
            positions: shape (n,), from the start of the epoch.
            bases: draws of each stream before this epoch, whole rows of them.

        Returns:
            streams and draws, each of shape (n,).
        """
        if len(self.rows) == 1:
            return np.zeros_like(positions), bases[0] + positions
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
            stream = int(self._streams_before(epoch, row + 1)[-1])
            counts[stream] -= self.canonical_nodes - node
        return tuple(counts)

    def consumed(self, epoch: int, positions: int) -> tuple[int, ...]:
        """Draws of each stream after the first `positions` positions, rounded up to whole rows."""
        row = min(ceil_div(positions, self.canonical_nodes), sum(self.rows))
        own = self._streams_before(epoch, row)
        counts = np.bincount(own, minlength=len(self.rows)) + self.counts(row - len(own))
        return tuple((counts * self.canonical_nodes).tolist())

    def _streams_before(self, epoch: int, row: int) -> Ints:
        """The streams of the rows before a row that are in the window of the last one: (rows,)."""
        if not row:
            return np.empty(0, np.int64)
        window = int(self._windows_of(np.array(row - 1)))
        return self._window(epoch, window)[0][: row - self._rows_of(window).start]

    def _windows_of(self, rows: Ints) -> Ints:
        """The window of each row: (rows,)."""
        span = np.searchsorted(self._first_rows, rows, side="right") - 1
        inside = rows - self._first_rows[span]
        windows: Ints = self._first_windows[span] + inside // self._window_rows
        return windows

    def _rows_of(self, window: int) -> range:
        """The rows of a window; no window is in two spans."""
        span = int(np.searchsorted(self._first_windows, window, side="right")) - 1
        inside = (window - int(self._first_windows[span])) * self._window_rows
        first = int(self._first_rows[span]) + inside
        return range(first, min(first + self._window_rows, int(self._first_rows[span + 1])))

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


METHODS: Final = ("random", "stratified", "per_stream", "device_per_stream")
AT_LIMITS: Final = ("error", "renormalize")
RAMP_SPANS: Final = 256  # a ramp has this many steps, each of a window of rows at least
_ONE: Final = 1 << 64  # proportions are whole numbers of such parts, so that sums stay exact


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixing:
    """How much of each stream training gets, by the tokens of training so far.

    Attributes:
        proportions: of the streams, relative to each other.
        max_repeats: passes over each stream in all of training, at most; None for no limit.
        at_limit: what happens at the limit: `error`, or `renormalize`: the other streams take over.
    """

    proportions: tuple[Schedule, ...]
    max_repeats: tuple[Fraction | None, ...]
    at_limit: str = "error"

    def __post_init__(self) -> None:
        for start in starts_of(self.proportions):
            if not any(each.at(start) for each in self.proportions):
                raise UsageError(
                    f"All streams have the proportion 0 at token {start:,}: raise one."
                )

    def identity(self) -> dict[str, Any]:
        """What a state names of it."""
        names: dict[str, Any] = {"proportions": [*map(str, self.proportions)]}
        if any(limit is not None for limit in self.max_repeats):
            names["max_repeats"] = [
                None if limit is None else str(limit) for limit in self.max_repeats
            ]
            names["at_max_repeats"] = self.at_limit
        return names

    def changes(self, tokens: int, stop: int) -> list[int]:
        """Where entries of the schedules begin after `tokens`, before `stop`."""
        return [start for start in starts_of(self.proportions) if tokens < start < stop]

    def room(self, sizes: Sequence[int], before: Sequence[int], *, row: int) -> list[float]:
        """Rows that each stream may still get, infinity for any number.

        Args:
            sizes: sequences of each stream.
            before: those of each that were drawn.
            row: sequences a row.
        """
        return [
            math.inf if limit is None else (int(limit * size) - drawn) // row
            for limit, size, drawn in zip(self.max_repeats, sizes, before, strict=True)
        ]

    def spans(
        self, *, tokens: int, rows: int, row_tokens: int, room: Sequence[float]
    ) -> list[tuple[int, ...]]:
        """How many of some rows belong to each stream, span after span; see `Mixture`.

        Over any number of spans, a stream has what its proportion asks for to within one row.

        Args:
            tokens: of training at the first row.
            rows: to deal out.
            row_tokens: tokens a row.
            room: rows that each stream may still get.

        Raises:
            UsageError: a stream would go beyond its limit.
        """
        count = len(self.proportions)
        wanted, given = [0] * count, [0] * count  # the first in parts of `_ONE`
        spans: list[tuple[int, ...]] = []
        row = 0
        for size, middle in self._even_spans(tokens, rows, row_tokens):
            weights = [proportion.at(middle) for proportion in self.proportions]
            stop = row + size
            while row < stop:
                left = [limit - own for limit, own in zip(room, given, strict=True)]
                parts = self._parts(weights, left, tokens=tokens + row * row_tokens)
                span = _deal(stop - row, parts, wanted, given)
                span = dealt(span, _fitting(span, left))
                wanted = [a + sum(span) * part for a, part in zip(wanted, parts, strict=True)]
                given = [a + b for a, b in zip(given, span, strict=True)]
                spans.append(span)
                row += sum(span)
        return spans

    def _parts(
        self, weights: Sequence[Fraction], left: Sequence[float], *, tokens: int
    ) -> list[int]:
        """The proportions, in parts of `_ONE`, of the streams that have rows left.

        Raises:
            UsageError: a stream of some weight has none, and the others do not take over.
        """
        over = [n for n, rows in enumerate(left) if rows <= 0 and weights[n]]
        kept = [Fraction(0) if n in over else weight for n, weight in enumerate(weights)]
        if over and (self.at_limit == "error" or not any(kept)):
            raise UsageError(
                f"At token {tokens:,} of training, stream {', '.join(map(str, over))} has reached "
                "`max_repeats`, and no other takes over. Lower epoch_size or its proportion, raise "
                "max_repeats, or pass at_max_repeats='renormalize' if another stream is left."
            )
        total = sum(kept)
        return [max(1, int(weight * _ONE / total)) if weight else 0 for weight in kept]

    def _even_spans(self, tokens: int, rows: int, row_tokens: int) -> Iterator[tuple[int, int]]:
        """How many consecutive rows have one mixture, and the token whose proportions they have."""
        begin = 0
        for change in [*self.changes(tokens, tokens + rows * row_tokens), None]:
            stop = rows if change is None else min(rows, ceil_div(change - tokens, row_tokens))
            size, start = stop - begin, tokens + begin * row_tokens
            if not size:
                continue
            if any(proportion.in_ramp(start) for proportion in self.proportions):
                number = max(1, min(RAMP_SPANS, size // WINDOW_ROWS))
                edges = [begin + size * i // number for i in range(number + 1)]
                for low, high in pairwise(edges):
                    yield high - low, tokens + (low + high) * row_tokens // 2
            else:
                yield size, start
            begin = stop


def _deal(
    size: int, proportions: Sequence[int], wanted: Sequence[int], given: Sequence[int]
) -> tuple[int, ...]:
    """Rows of a span for each stream: its deficit, rounded so that the sum is `size`."""
    missing = [
        a + size * proportion - own * _ONE
        for a, proportion, own in zip(wanted, proportions, given, strict=True)
    ]
    counts = [
        max(0, lack // _ONE) if proportion else 0
        for lack, proportion in zip(missing, proportions, strict=True)
    ]
    live = [number for number, proportion in enumerate(proportions) if proportion]

    def lacks(number: int) -> int:
        return missing[number] - counts[number] * _ONE

    while (rest := size - sum(counts)) > 0:
        for number in sorted(live, key=lacks, reverse=True)[:rest]:
            counts[number] += 1
    while sum(counts) > size:
        number = min((each for each in live if counts[each]), key=lacks)
        counts[number] -= 1
    return tuple(counts)


def _fitting(span: tuple[int, ...], room: Sequence[float]) -> int:
    """How many rows of a span can be dealt out until a stream has no room."""

    def overflows(rows: int) -> bool:
        return any(count > limit for count, limit in zip(dealt(span, rows), room, strict=True))

    return bisect_left(range(1, sum(span) + 1), True, key=overflows)
