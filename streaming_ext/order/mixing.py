"""How an epoch is dealt out to several streams: in fixed amounts, or in changing proportions."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Any, Final

from streaming_ext.base.errors import UsageError
from streaming_ext.order.mixture import WINDOW_ROWS, Mixture, dealt
from streaming_ext.order.order import OrderSpec
from streaming_ext.order.schedule import Schedule

METHODS: Final = ("random", "stratified", "per_stream", "device_per_stream")
AT_LIMITS: Final = ("error", "renormalize")
RAMP_SPANS: Final = 256  # a ramp is a stair of so many steps, each of a window of rows at least
_ONE: Final = 1 << 64  # proportions are whole numbers of such parts, so that sums stay exact


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixing:
    """How much of each stream training gets, by the tokens that lie behind.

    Attributes:
        proportions: of the streams, relative to each other.
        max_repeats: passes over each stream in all of training, at most; None for no limit.
        at_limit: what to do there: `error`, or `renormalize`: the other streams take over.
    """

    proportions: tuple[Schedule, ...]
    max_repeats: tuple[Fraction | None, ...]
    at_limit: str = "error"

    def __post_init__(self) -> None:
        if self.at_limit not in AT_LIMITS:
            raise UsageError(
                f"`at_max_repeats` must be {' or '.join(map(repr, AT_LIMITS))}, got "
                f"{self.at_limit!r}."
            )
        for proportion in self.proportions:
            for point in proportion.points:
                if not any(each.at(point.start) for each in self.proportions):
                    raise UsageError(
                        f"All streams have the proportion 0 at token {point.start:,}: raise one."
                    )

    def identity(self) -> dict[str, Any]:
        """What a state names of it."""
        told: dict[str, Any] = {"proportions": [str(proportion) for proportion in self.proportions]}
        if any(limit is not None for limit in self.max_repeats):
            told["max_repeats"] = [
                None if limit is None else str(limit) for limit in self.max_repeats
            ]
            told["at_max_repeats"] = self.at_limit
        return told

    def changes(self, tokens: int, stop: int) -> list[int]:
        """Where entries of the schedules are behind `tokens`, up to `stop`."""
        points = {point.start for proportion in self.proportions for point in proportion.points}
        return sorted(point for point in points if tokens < point < stop)

    def room(self, sizes: Sequence[int], before: Sequence[int], *, row: int) -> list[int | None]:
        """Rows that each stream may still get, None for any number.

        Args:
            sizes: sequences of each stream.
            before: those of each that were drawn.
            row: sequences a row.
        """
        return [
            None if limit is None else (int(limit * size) - drawn) // row
            for limit, size, drawn in zip(self.max_repeats, sizes, before, strict=True)
        ]

    def spans(
        self, *, tokens: int, rows: int, row_tokens: int, room: Sequence[int | None]
    ) -> list[tuple[int, ...]]:
        """How many of some rows belong to each stream, span after span; see `Mixture`.

        Over any number of spans, a stream has what its proportion asks for to within one row.

        Args:
            tokens: of training at the first row.
            rows: to deal out.
            row_tokens: tokens a row.
            room: rows that each stream may still get, None for any number.

        Raises:
            UsageError: a stream would go beyond its limit.
        """
        count = len(self.proportions)
        wanted, given = [0] * count, [0] * count  # the first in parts of `_ONE`
        weights = _Weights(self.proportions)
        spans: list[tuple[int, ...]] = []
        at = 0
        for size, middle in self._even_spans(tokens, rows, row_tokens):
            stop = at + size
            while at < stop:
                left = [
                    None if limit is None else limit - own
                    for limit, own in zip(room, given, strict=True)
                ]
                proportions = self._proportions(
                    weights.at(middle), left, here=tokens + at * row_tokens
                )
                whole = _deal(stop - at, proportions, wanted, given)
                span = dealt(whole, _fitting(whole, left))
                wanted = [
                    a + sum(span) * proportion
                    for a, proportion in zip(wanted, proportions, strict=True)
                ]
                given = [a + b for a, b in zip(given, span, strict=True)]
                spans.append(span)
                at += sum(span)
        return spans

    def _proportions(
        self, weights: list[int], left: Sequence[int | None], *, here: int
    ) -> list[int]:
        """Proportions by weight, in parts of `_ONE`, of the streams that have rows left."""
        over = [
            number
            for number, rows in enumerate(left)
            if rows is not None and rows <= 0 and weights[number]
        ]
        for number in over:
            weights[number] = 0
        if over and (self.at_limit == "error" or not any(weights)):
            raise self._used_up(over, here)
        total = sum(weights)
        return [max(1, weight * _ONE // total) if weight else 0 for weight in weights]

    def _even_spans(self, tokens: int, rows: int, row_tokens: int) -> Iterator[tuple[int, int]]:
        """Runs of rows of one mixture: how many rows, and the token whose proportions they have."""
        begin = 0
        for change in [*self.changes(tokens, tokens + rows * row_tokens), None]:
            stop = rows if change is None else min(rows, -(-(change - tokens) // row_tokens))
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

    def _used_up(self, streams: Sequence[int], tokens: int) -> UsageError:
        names = ", ".join(map(str, streams))
        return UsageError(
            f"At token {tokens:,} of training, stream {names} has reached `max_repeats`"
            + (
                ". Lower epoch_size or its proportion, raise max_repeats, or let the others take "
                "over: at_max_repeats='renormalize'."
                if self.at_limit == "error"
                else ", and no other is left. Lower epoch_size, or raise max_repeats."
            )
        )


class _Weights:
    """Proportions as whole numbers over one denominator: a hundred fractions take milliseconds."""

    def __init__(self, proportions: Sequence[Schedule]) -> None:
        self._proportions = proportions
        points = {point.start for proportion in proportions for point in proportion.points}
        self._points = sorted(points)
        # By the number of the stretch between two points: at 0 tokens, and growth a token.
        self._lines: dict[int, list[tuple[int, int]]] = {}

    def at(self, tokens: int) -> list[int]:
        """The weight of each stream at a number of tokens."""
        stretch = bisect_right(self._points, tokens)
        lines = self._lines.get(stretch)
        if lines is None:
            told = [proportion.line(tokens) for proportion in self._proportions]
            whole = lcm(*(part.denominator for line in told for part in line))
            lines = [(int(first * whole), int(growth * whole)) for first, growth in told]
            self._lines[stretch] = lines
        return [first + growth * tokens for first, growth in lines]


def _deal(
    size: int, proportions: Sequence[int], wanted: Sequence[int], given: Sequence[int]
) -> tuple[int, ...]:
    """Rows of a span for each stream: what it is behind, rounded so that the sum is `size`."""
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


def _fitting(span: tuple[int, ...], room: Sequence[int | None]) -> int:
    """How many rows of a span can be dealt out until a stream has no room: all, or one at least."""

    def fits(rows: int) -> bool:
        counts = dealt(span, rows)
        return all(
            limit is None or count <= limit for count, limit in zip(counts, room, strict=True)
        )

    size = sum(span)
    if fits(size):
        return size
    low, high = 0, size  # low rows fit, high do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class Dealing:
    """The mixture of each epoch: the same one for all, or one of where the epoch begins.

    Attributes:
        row: positions in a row that all draw from one stream.
        epoch_size: positions of an epoch.
        choose: sequences of each stream an epoch; with `mixing` only their sum counts.
        mixing: proportions of the streams, where they change or have limits.
    """

    def __init__(
        self,
        spec: OrderSpec,
        *,
        sizes: Sequence[int],
        choose: Sequence[int],
        method: str,
        step: int,
        ranks: int,
        drop_last: bool,
        mixing: Mixing | None,
        length: int,
    ) -> None:
        """Deal out the rows, where every epoch has the same.

        Args:
            spec: the order within each stream.
            sizes: sequences of each stream, (streams,).
            choose: sequences of each stream an epoch, (streams,).
            method: how several streams proportion a step, one of `METHODS`.
            step: positions a step, over all ranks.
            ranks: that proportion a step.
            drop_last: leave out of each stream what makes no whole row; or fill that up.
            mixing: proportions of the streams, where they change or have limits.
            length: tokens a position.

        Raises:
            UsageError: a stream gives less than one row an epoch.
        """
        self.mixing = mixing
        self._sizes, self._length = sizes, length
        self._seed, self._shuffle = spec.seed, spec.shuffle
        self._same: Mixture | None = None
        self._mixtures: dict[tuple[int, tuple[int, ...]], Mixture] = {}
        self.row = 1
        if len(sizes) > 1:
            # An epoch is dealt out in rows of consecutive positions, each of one stream.
            rows = {"per_stream": step, "stratified": 1, "device_per_stream": step // ranks}
            self.row = rows.get(method, spec.canonical_nodes)
            window = step if method == "stratified" else WINDOW_ROWS
            choose = self._whole_rows(choose, method, window, drop_last=drop_last)
        self.epoch_size = sum(self._same.rows) * self.row if self._same else sum(choose)
        self.choose = tuple(choose)

    def _whole_rows(
        self, choose: Sequence[int], method: str, window: int, *, drop_last: bool
    ) -> list[int]:
        """What each stream gives an epoch; where that is fixed, deal out its rows.

        These are whole ones; without `drop_last` the last one of each stream is filled up.
        """
        if self.mixing is not None:
            return [sum(choose) // self.row * self.row]
        fill = 0 if drop_last else self.row - 1
        rows = tuple((count + fill) // self.row for count in choose)
        if 0 in rows:
            least, instead = {
                "per_stream": (f"one global batch of {self.row}", "lower batch_size"),
                "device_per_stream": (f"one batch of a rank, {self.row}", "lower batch_size"),
                "stratified": ("one", "raise epoch_size"),
            }.get(
                method,
                (f"one for each of the {self.row} canonical nodes", "lower num_canonical_nodes"),
            )
            raise UsageError(
                f"A stream gives {min(choose)} sequences an epoch, less than {least}. Raise "
                f"its proportion, or {instead}."
            )
        self._same = Mixture(
            rows, canonical_nodes=self.row, seed=self._seed, shuffle=self._shuffle, window=window
        )
        return [count * self.row for count in rows] if drop_last else list(choose)

    def chosen(self, tokens: int, before: tuple[int, ...]) -> tuple[int, ...]:
        """Sequences of each stream in the epoch that begins there; see `mixture`."""
        mixture = None if self.mixing is None else self.mixture(tokens, before)
        return self.choose if mixture is None else tuple(rows * self.row for rows in mixture.rows)

    def mixture(self, tokens: int, before: tuple[int, ...]) -> Mixture | None:
        """How an epoch is dealt out to several streams; None where there is one.

        Args:
            tokens: of training before the epoch.
            before: draws of each stream before it.
        """
        if self.mixing is None:
            return self._same
        found = self._mixtures.get((tokens, before))
        if found is None:
            room = self.mixing.room(self._sizes, before, row=self.row)
            spans = self.mixing.spans(
                tokens=tokens,
                rows=self.epoch_size // self.row,
                row_tokens=self.row * self._length,
                room=room,
            )
            found = Mixture(
                *spans, canonical_nodes=self.row, seed=self._seed, shuffle=self._shuffle
            )
            for old in list(self._mixtures.copy())[:-2]:  # another thread may look ahead meanwhile
                self._mixtures.pop(old, None)
            self._mixtures[tokens, before] = found
        return found
