"""Values that change with the tokens of training: `0:768 250B:1536`."""

import re
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from streaming_ext.base.errors import UsageError

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_NUMBER: Final = r"\d+(?:\.\d+)?"
_ENTRY: Final = re.compile(rf"({_NUMBER})([kmbt]?):({_NUMBER})(?:->({_NUMBER}))?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Where a value changes.

    Attributes:
        start: tokens of training from which on it holds.
        value: at the start.
        end: at the start of the next point; another one than `value` in a ramp.
    """

    start: int
    value: Fraction
    end: Fraction


_MOST = 2**31 - 1  # of whole numbers: sequences a step, tokens a sequence


@dataclass(frozen=True, slots=True)
class Schedule:
    """A value for each number of tokens: constant between its points, or a straight line.

    "0:0.9 900B:0.9->0.2 1T:0.2" is 0.9 up to 900 billion tokens, goes down to 0.2 until one
    trillion, and stays there.
    """

    points: tuple[Point, ...]

    @classmethod
    def of_integers(cls, value: int | str, *, name: str) -> "Schedule":
        """A schedule of whole numbers above 0, as a number or as a text.

        Raises:
            UsageError: it is none; the message says what is allowed.
        """
        schedule = cls._parse(value, name=name)
        for point in schedule.points:
            if point.value != point.end:
                raise UsageError(f"`{name}` changes in steps, never in a ramp; got {value!r}.")
            told = _decimal(point.value) + ("" if schedule.constant else f" in {value!r}")
            if point.value < 1:
                raise UsageError(f"`{name}` must be at least 1, got {told}.")
            if point.value > _MOST:
                raise UsageError(f"`{name}` must be at most {_MOST:,}, got {told}.")
            if point.value.denominator != 1:
                raise UsageError(f"`{name}` must be a whole number, got {told}.")
        return schedule

    @classmethod
    def of_proportions(cls, value: float | str, *, name: str) -> "Schedule":
        """A schedule of shares of at least 0, above 0 somewhere; in steps or ramps.

        Raises:
            UsageError: it is none; the message says what is allowed.
        """
        schedule = cls._parse(value, name=name)
        if not any(point.value or point.end for point in schedule.points):
            raise UsageError(f"`{name}` is 0 everywhere; leave the stream out instead.")
        return schedule

    @classmethod
    def _parse(cls, value: float | str, *, name: str) -> "Schedule":
        text = str(value).strip()
        if not isinstance(value, str) or re.fullmatch(_NUMBER, text):
            try:
                constant = Fraction(text)
            except ValueError:
                raise _wrong(value, name, "That is no number") from None
            return cls((Point(start=0, value=constant, end=constant),))
        points: list[Point] = []
        for word in text.split():
            match = _ENTRY.fullmatch(word)
            if match is None:
                raise _wrong(value, name, f"{word!r} is not TOKENS:VALUE")
            start = Fraction(match[1]) * _UNITS[match[2].lower()]
            if start.denominator != 1:
                raise _wrong(value, name, f"{word!r} starts within a token")
            if points and start <= points[-1].start:
                raise _wrong(value, name, f"{word!r} does not start behind the one before")
            points.append(
                Point(
                    start=int(start), value=Fraction(match[3]), end=Fraction(match[4] or match[3])
                )
            )
        if not points or points[0].start:
            raise _wrong(value, name, "The first entry must start at 0")
        if points[-1].value != points[-1].end:
            raise _wrong(value, name, "A ramp ends where the next entry starts, and there is none")
        return cls(tuple(points))

    @property
    def constant(self) -> bool:
        """Whether it is one value throughout."""
        return len(self.points) == 1

    @property
    def named(self) -> int | str:
        """A schedule of whole numbers as a state names it: its one value, or its text."""
        return self.largest if self.constant else str(self)

    @property
    def largest(self) -> int:
        """The largest value, of whole numbers."""
        return int(max(point.value for point in self.points))

    def then(self, tokens: int, other: "Schedule") -> "Schedule":
        """This one before a number of tokens, and another one, without ramps, from there on."""
        value = other.at(tokens)
        before = [point for point in self.points if point.start < tokens]
        behind = [point for point in other.points if point.start > tokens]
        return Schedule((*before, Point(start=tokens, value=value, end=value), *behind))

    def at(self, tokens: int) -> Fraction:
        """The value at a number of tokens."""
        number = self._number(tokens)
        point = self.points[number]
        if point.value == point.end:
            return point.value
        length = self.points[number + 1].start - point.start
        return point.value + (point.end - point.value) * Fraction(tokens - point.start, length)

    def in_ramp(self, tokens: int) -> bool:
        """Whether the value is changing there."""
        point = self.points[self._number(tokens)]
        return point.value != point.end

    def next_change(self, tokens: int) -> int | None:
        """Where the next point behind a number of tokens is."""
        number = self._number(tokens) + 1
        return self.points[number].start if number < len(self.points) else None

    def __str__(self) -> str:
        """The one text of all that mean the same, as a state names it."""
        return " ".join(
            f"{point.start}:{_decimal(point.value)}"
            + ("" if point.value == point.end else f"->{_decimal(point.end)}")
            for point in self.points
        )

    def _number(self, tokens: int) -> int:
        return bisect_right(self.points, tokens, key=lambda point: point.start) - 1


def _decimal(value: Fraction) -> str:
    """Without trailing zeros: all values were written as decimals."""
    return f"{(Decimal(value.numerator) / value.denominator).normalize():f}"


def _wrong(value: object, name: str, why: str) -> UsageError:
    return UsageError(
        f"`{name}` must be a number, or a schedule such as '0:VALUE 250B:VALUE': from how many "
        f"tokens of training on (K, M, B, T for thousands to trillions) it has which value; got "
        f"{value!r}. {why}."
    )
