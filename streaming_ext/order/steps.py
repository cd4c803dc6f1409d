"""The steps of an epoch, whose sizes may change with the tokens of training: `0:768 250B:1536`.

Positions of an epoch are rows of the longest sequence length. A step of G sequences of 1/k of that
length holds G / k whole rows, each cut into k sequences, so a change of the length repeats and
loses no token. The tokens before a step decide its size.

Step t of G whole rows holds the positions [t G, (t + 1) G), whatever the number of ranks. They are
sorted by canonical node and cut into one slice per rank. If the number of nodes divides the number
of canonical nodes, which divides the rows of a step, each node reads its own canonical nodes only.

    lengths "0:4 32:8", batch 4, from token 0 of an epoch of 10 rows of 8 tokens:
    steps 0 and 1 hold rows 0, 1 and 2, 3 in halves of 4 tokens, 32 tokens in all
    step 2 holds rows 4 to 7 as they are; rows 8 and 9 make no step
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from streaming_ext.base.arrays import Ints, ceil_div
from streaming_ext.base.errors import UsageError
from streaming_ext.base.units import COUNTS
from streaming_ext.order.ranks import DataRank

_MOST: Final = 2**31 - 1  # sequences per step, or tokens per sequence
_ENTRY: Final = re.compile(r"(\d+(?:\.\d+)?)([kmbt]?):(\d+(?:\.\d+)?)", re.IGNORECASE)


class Point(NamedTuple):
    """A value, and the number of tokens of training from which it holds."""

    start: int
    value: Fraction


@dataclass(frozen=True, slots=True)
class Schedule:
    """A value for each number of tokens: "0:0.9 900B:0.2" is 0.9 up to 900 billion, then 0.2."""

    points: tuple[Point, ...]

    @classmethod
    def of_integers(cls, value: int | str, *, name: str) -> "Schedule":
        """Read a schedule of whole numbers above 0 from a number or a text.

        Raises:
            UsageError: the value is no such schedule; the message says what is allowed.
        """
        schedule = cls._parse(value, name=name)
        for _, each in schedule.points:
            if each.denominator > 1 or not 1 <= each <= _MOST:
                raise UsageError(
                    f"`{name}` must be a whole number from 1 to {_MOST:,}; got {value!r}."
                )
        return schedule

    @classmethod
    def of_proportions(cls, value: float | str, *, name: str) -> "Schedule":
        """Read a schedule of proportions of at least 0, not 0 everywhere.

        Raises:
            UsageError: the value is no such schedule; the message says what is allowed.
        """
        schedule = cls._parse(value, name=name)
        if not any(each for _, each in schedule.points):
            raise UsageError(f"`{name}` is 0 everywhere; leave the stream out instead.")
        return schedule

    @classmethod
    def _parse(cls, value: float | str, *, name: str) -> "Schedule":
        points = _points(value)
        starts = [point.start for point in points]
        if starts[:1] != [0] or starts != sorted(set(starts)):
            raise UsageError(
                f"`{name}` must be a number, or a schedule of TOKENS:VALUE such as '0:VALUE "
                "250B:VALUE': the value from a number of tokens of training on (K, M, B, T for "
                f"thousands to trillions), rising from 0. Got {value!r}."
            )
        return cls(tuple(points))

    @property
    def constant(self) -> bool:
        """True if the schedule has a single value."""
        return len(self.points) == 1

    @property
    def named(self) -> int | str:
        """The name of a schedule of whole numbers in a state: its one value, or its text."""
        return self.largest if self.constant else str(self)

    @property
    def largest(self) -> int:
        """The largest value of a schedule of whole numbers."""
        return int(max(point.value for point in self.points))

    def then(self, tokens: int, other: "Schedule") -> "Schedule":
        """Join this schedule before a number of tokens, and another one after it."""
        before = [point for point in self.points if point.start < tokens]
        after = [point for point in other.points if point.start > tokens]
        return Schedule((*before, Point(tokens, other.at(tokens)), *after))

    def at(self, tokens: int) -> Fraction:
        """Find the value at a number of tokens."""
        number = bisect_right(self.points, tokens, key=lambda point: point.start)
        return self.points[number - 1].value

    def __str__(self) -> str:
        """Write the schedule as a state names it; schedules that mean the same have one text."""
        return " ".join(f"{start}:{_decimal(value)}" for start, value in self.points)


def _points(value: float | str) -> list[Point]:
    """Read the points of a number or of a schedule as a text; none if the value is neither."""
    try:
        text = value.strip() if isinstance(value, str) else f"{Decimal(str(value)):f}"
    except ArithmeticError:
        return []
    points = []
    for word in text.split() if ":" in text else [f"0:{text}"]:
        entry = _ENTRY.fullmatch(word)
        if entry is None:
            return []
        start = Fraction(entry[1]) * COUNTS[entry[2].lower()]
        if start.denominator > 1:
            return []
        points.append(Point(int(start), Fraction(entry[3])))
    return points


def starts_of(schedules: Iterable[Schedule]) -> list[int]:
    """List the tokens at which entries of some schedules begin."""
    return sorted({point.start for schedule in schedules for point in schedule.points})


def _decimal(value: Fraction) -> str:
    """Write a value as a decimal without trailing zeros; every value was given as a decimal."""
    return f"{(Decimal(value.numerator) / value.denominator).normalize():f}"


@lru_cache(maxsize=256)
def step_layout(*, rows: int, canonical_nodes: int, first_node: int) -> Ints:
    """Sort the offsets of a step's positions by canonical node, as ranks take them: (rows,).

        6 rows, 4 canonical nodes, the first position in node 3: nodes 3 0 1 2 3 0
        sorted by node, the offsets are 1 5, 2, 3, 0 4
        with two ranks, the first takes 1 5 2, the second 3 0 4

    Args:
        rows: positions per step.
        canonical_nodes: the number of canonical nodes.
        first_node: the canonical node of the step's first position.
    """
    return np.argsort((first_node + np.arange(rows)) % canonical_nodes, kind="stable")


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Consecutive steps of one size, as one rank reads them.

    Attributes:
        first: the number of its first step.
        stop: the number of the step after its last one.
        position: the first position of its first step.
        length: tokens per sequence.
        global_batch: sequences per step, over all ranks.
        per_position: sequences that each position is cut into.
        canonical_nodes: the number of canonical nodes by which a step is divided among ranks.
        rank: this data-parallel rank.
    """

    first: int
    stop: int
    position: int
    length: int
    global_batch: int
    per_position: int
    canonical_nodes: int
    rank: DataRank

    @property
    def end(self) -> int:
        """The position after the last step."""
        return self.position_of(self.stop)

    @property
    def batch_size(self) -> int:
        """Sequences per rank and step."""
        return self.global_batch // self.rank.size

    @property
    def rows(self) -> int:
        """Positions per step, over all ranks."""
        return self.global_batch // self.per_position

    @property
    def of_all_ranks(self) -> "Phase":
        """The same steps as one rank would read them."""
        return replace(self, rank=DataRank(rank=0, size=1))

    def steps_at_once(self, ids: int) -> int:
        """Count the steps that have at most `ids` ids per rank, 1 to 64."""
        return max(1, min(64, ids // (self.length * self.batch_size)))

    def position_of(self, step: int) -> int:
        """Find the first position of a step."""
        return self.position + (step - self.first) * self.rows

    def step_of(self, position: int) -> int:
        """Find the step that holds a position."""
        return self.first + (position - self.position) // self.rows

    def positions(self, steps: Ints, *, shift: int) -> Ints:
        """Find the positions of this rank in some steps, one entry for each sequence.

        Args:
            steps: the numbers of the steps: (steps,).
            shift: the canonical node of the epoch's first position.

        Returns:
            the positions: (steps, batch_size).
        """
        starts = self.position + (steps - self.first) * self.rows
        first_nodes = (starts + shift) % self.canonical_nodes
        own = self._own // self.per_position
        if (first_nodes == first_nodes[0]).all():
            first_nodes = first_nodes[:1]
        # offsets: (steps, batch_size), or (1, batch_size) if all are alike
        layouts = (
            step_layout(rows=self.rows, canonical_nodes=self.canonical_nodes, first_node=node)
            for node in first_nodes.tolist()
        )
        offsets = np.stack([layout[own] for layout in layouts])
        result: Ints = starts[:, None] + offsets
        return result

    def parts_of(self, sequences: Ints) -> Ints:
        """Number the sequences of this phase, given the longest sequences that hold them.

            a phase of 4 tokens per sequence: sequence 5 of 8 tokens holds its sequences 10 and 11

        Args:
            sequences: sequences of the longest length, as `positions` orders them.
        """
        if self.per_position == 1:
            return sequences
        return sequences * self.per_position + self._own % self.per_position

    @property
    def _own(self) -> Ints:
        """The numbers of this rank's sequences in a step: (batch_size,)."""
        first = self.rank.rank * self.batch_size
        return np.arange(first, first + self.batch_size)


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The number and the length of a step's sequences, by the tokens of training before it.

    Attributes:
        global_batch: sequences per step, over all ranks.
        length: tokens per sequence; each divides the longest.
    """

    global_batch: Schedule
    length: Schedule

    def __post_init__(self) -> None:
        longest = self.longest
        for start, batch, length in self.entries():
            if longest % length:
                raise UsageError(
                    f"`sequence_length` is {length} from token {start:,} on, which does not divide "
                    f"the longest, {longest}. Choose lengths that do."
                )
            if batch % (longest // length):
                raise UsageError(
                    f"`global_batch` is {batch} from token {start:,} on, at `sequence_length` "
                    f"{length}: it must be a multiple of {longest // length}, so that a step "
                    f"holds whole rows of {longest} tokens."
                )

    @classmethod
    def named(cls, order: Mapping[str, Any]) -> "StepSizes":
        """Read the sizes that a state names.

        Raises:
            UsageError: they are no schedules, or do not fit together.
        """
        names = ("global_batch", "sequence_length")
        return cls(*(Schedule.of_integers(order[name], name=name) for name in names))

    def entries(self) -> Iterator[tuple[int, int, int]]:
        """Yield each start in tokens, with the sequences per step and their length from it on."""
        for start in starts_of((self.global_batch, self.length)):
            yield start, *self.at(start)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequences, and so of a position."""
        return self.length.largest

    @property
    def change(self) -> bool:
        """True if steps have several sizes."""
        return not (self.global_batch.constant and self.length.constant)

    def at(self, tokens: int) -> tuple[int, int]:
        """Find the sequences of a step that begins at a number of tokens, and their length."""
        return int(self.global_batch.at(tokens)), int(self.length.at(tokens))

    def require_ranks(self, num_ranks: int) -> None:
        """Refuse a number of ranks that does not divide every step.

        Raises:
            UsageError: naming the step.
        """
        for start, batch, _ in self.entries():
            if batch % num_ranks:
                raise UsageError(
                    f"`global_batch` is {batch} from token {start:,} on, which {num_ranks} "
                    f"data-parallel ranks do not divide. Choose a multiple of {num_ranks}, or "
                    "another number of ranks."
                )

    def require_epoch(self, positions: int) -> None:
        """Refuse steps that are larger than an epoch: later epochs would be empty.

        Args:
            positions: positions per epoch, rows of the longest length.

        Raises:
            UsageError: naming the step.
        """
        for start, batch, length in self.entries():
            rows = batch * length // self.longest
            if rows > positions:
                raise UsageError(
                    f"An epoch of {positions} sequences is less than one global batch of {rows}, "
                    f"which a step takes from token {start:,} on. Lower batch_size, or raise "
                    "epoch_size."
                )

    def then(self, tokens: int, other: "StepSizes") -> "StepSizes":
        """Join these sizes before a number of tokens, and others after it."""
        return StepSizes(
            self.global_batch.then(tokens, other.global_batch),
            self.length.then(tokens, other.length),
        )

    def phases(
        self,
        *,
        first: int = 0,
        position: int,
        end: int,
        tokens: int,
        canonical_nodes: int = 1,
        rank: DataRank = DataRank(rank=0, size=1),  # noqa: B008 - it is frozen
        drop_last: bool = True,
    ) -> list[Phase]:
        """List the phases of an epoch from a position on.

        Args:
            first: the number of the first step.
            position: the first position of the first step.
            end: positions of the epoch.
            tokens: tokens of training before position 0.
            canonical_nodes: the number of canonical nodes by which a step is divided among ranks.
            rank: this data-parallel rank.
            drop_last: True to leave out a short last step.
        """
        phases: list[Phase] = []
        while position < end:
            seen = tokens + position * self.longest
            batch, length = self.at(seen)
            per_position = self.longest // length
            rows = batch // per_position
            left = end - position
            steps = left // rows if drop_last else ceil_div(left, rows)
            changes = (start for start, _, _ in self.entries() if start > seen)
            if change := next(changes, None):  # the last step of a phase may go beyond its end
                steps = min(steps, ceil_div(change - seen, rows * self.longest))
            if not steps:
                break
            phase = Phase(
                first=first,
                stop=first + steps,
                position=position,
                length=length,
                global_batch=batch,
                per_position=per_position,
                canonical_nodes=canonical_nodes,
                rank=rank,
            )
            # Only past steps may not fit these ranks: they count as steps of one rank.
            phases.append(phase.of_all_ranks if batch % rank.size else phase)
            first, position = phase.stop, phase.end
        return phases
