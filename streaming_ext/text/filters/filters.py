"""Which documents stay, as a user asks for it."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from streaming_ext.errors import UsageError
from streaming_ext.text.filters.condition import Condition

FilterName = Literal["where", "min_bytes", "min_characters", "min_tokens", "max_tokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """Each drops documents, and counts what it drops; the first that drops a document counts it.

    Attributes:
        where: condition on the columns of a row, see `Condition`.
        min_bytes: UTF-8 bytes of text at least.
        min_characters: code points of text at least.
        min_tokens: tokens at least, the end-of-text id left out.
        max_tokens: tokens at most, likewise.
    """

    where: str | None = None
    min_bytes: int | None = None
    min_characters: int | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Look at all of them.

        Raises:
            UsageError: one cannot be.
        """
        _ = self.condition
        for name in NAMES[1:]:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"`{name}` must be at least 1, got {value}.")
        if self.min_tokens and self.max_tokens and self.min_tokens > self.max_tokens:
            raise UsageError(
                f"`min_tokens` {self.min_tokens} is above `max_tokens` {self.max_tokens}: no "
                "document would stay."
            )

    @property
    def condition(self) -> Condition | None:
        """What `where` says."""
        return None if self.where is None else _condition(self.where)

    def by_tokens(self, lengths: npt.NDArray[np.int64]) -> dict[FilterName, npt.NDArray[np.bool_]]:
        """Which documents each filter of tokens drops, for those that there are.

        Args:
            lengths: tokens of each document, 0 for one that has none and is left out anyway.
        """
        found: dict[FilterName, npt.NDArray[np.bool_]] = {}
        if self.min_tokens is not None:
            found["min_tokens"] = (lengths > 0) & (lengths < self.min_tokens)
        if self.max_tokens is not None:
            found["max_tokens"] = lengths > self.max_tokens
        return found

    def given(self) -> dict[FilterName, Any]:
        """Those that there are."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}


NAMES: tuple[FilterName, ...] = get_args(FilterName)
BY_TEXT: tuple[FilterName, ...] = ("where", "min_bytes", "min_characters")  # before tokenizing


def option(name: FilterName) -> str:
    """What a filter is called on the command line."""
    return f"--{name.replace('_', '-')}"


_condition = cache(Condition)
NO_FILTERS = Filters()
