"""What the row filter masked, counted by each rank and put together by all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from streaming_ext.errors import ConfigMismatchError, UsageError

STATE_KEY: Final = "masked"  # of a state


@dataclass(frozen=True, kw_only=True, slots=True)
class Masked:
    """Rows that a filter masked.

    Attributes:
        rows: how many.
        tokens: that they have, padding counted.
    """

    rows: int = 0
    tokens: int = 0

    def __add__(self, other: "Masked") -> "Masked":
        return Masked(rows=self.rows + other.rows, tokens=self.tokens + other.tokens)


class MaskedCount:
    """The account of one loader.

    Attributes:
        own: of this rank, since all ranks were asked last.
        told: of all ranks, as they said when they were asked last.
    """

    def __init__(self, *, rank: int, ranks: int) -> None:
        """Begin with nothing.

        Args:
            rank: data-parallel rank.
            ranks: how many there are.
        """
        self._rank, self._ranks = rank, ranks
        self.own = self.told = Masked()

    def add(self, rows: int, length: int) -> None:
        """Count some rows of so many tokens."""
        if rows:
            self.own += Masked(rows=rows, tokens=rows * length)

    def all_ranks(self, group: Any) -> Masked:
        """Of all ranks, which call this together.

        Args:
            group: torch process group with every data-parallel rank; None for the default one.

        Raises:
            UsageError: there is no group, or not every rank is in it.
        """
        if self._ranks > 1:
            own = self._gathered(group)
            if sorted(own) != list(range(self._ranks)):
                raise UsageError(
                    f"The group holds the data-parallel ranks {sorted(own)}, of {self._ranks}. "
                    "Pass group= of all of them."
                )
        else:
            own = {0: self.own}
        self.told = sum(own.values(), self.told)
        self.own = Masked()
        return self.told

    def _gathered(self, group: Any) -> dict[int, Masked]:
        """What each rank counted; those that read the same say the same."""
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            raise UsageError(
                f"What the other {self._ranks - 1} ranks masked is known to them alone: call "
                "torch.distributed.init_process_group first."
            )
        found: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(found, (self._rank, self.own), group=group)
        return dict(found)

    def state(self) -> dict[str, Any]:
        """What a state holds of it."""
        told = self.told + self.own if self._ranks == 1 else self.told
        return {STATE_KEY: {"rows": told.rows, "tokens": told.tokens}}

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Go on from what a state holds.

        Raises:
            ConfigMismatchError: it is damaged.
        """
        told = state.get(STATE_KEY, {"rows": 0, "tokens": 0})
        try:
            self.told = Masked(rows=int(told["rows"]), tokens=int(told["tokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigMismatchError(f"The state's counts are damaged: {error!r}.") from error
        self.own = Masked()
