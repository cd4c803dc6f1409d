"""What the row filter masked, counted by each rank and put together by all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import UsageError

STATE_KEY: Final = "masked"  # of a state
_BEFORE, _EPOCH = 0, 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Masked:
    """Rows that a filter masked.

    Attributes:
        rows: how many.
        tokens: that they have, padding counted.
    """

    rows: int = 0
    tokens: int = 0


class MaskedCount:
    """The account of one loader: of the epochs before this one, and of this one by itself.

    An epoch may begin anew where it was broken off: then what was counted of it is taken back.
    """

    def __init__(self, *, rank: int, ranks: int, again: bool) -> None:
        """Begin with nothing.

        Args:
            rank: data-parallel rank.
            ranks: how many there are.
            again: whether an epoch may begin anew; a state then tells of it by itself.
        """
        self._rank, self._ranks, self._again = rank, ranks, again
        # Rows and tokens of the epochs before this one, and of this one: (2, 2) each.
        self._own: Ints = np.zeros((2, 2), np.int64)  # of this rank, since all were asked last
        self._all: Ints = np.zeros((2, 2), np.int64)  # of all ranks, when they were asked last

    def add(self, rows: int, length: int) -> None:
        """Count some rows of so many tokens."""
        self._own[_EPOCH] += (rows, rows * length)

    def next_epoch(self) -> None:
        """An epoch begins; the one before it is not taken back any more."""
        for counts in (self._own, self._all):
            counts[_BEFORE] += counts[_EPOCH]
        self.epoch_again()

    def epoch_again(self) -> None:
        """The epoch begins anew."""
        self._own[_EPOCH] = self._all[_EPOCH] = 0

    def all_ranks(self, group: Any) -> Masked:
        """Of all ranks, which call this together.

        Args:
            group: torch process group with every data-parallel rank; None for the default one.

        Raises:
            UsageError: there is no group, or not every rank is in it.
        """
        own = self._gathered(group) if self._ranks > 1 else {0: self._own}
        if sorted(own) != list(range(self._ranks)):
            raise UsageError(
                f"The group holds the data-parallel ranks {sorted(own)}, of {self._ranks}. "
                "Pass group= of all of them."
            )
        self._all += sum(own.values())
        self._own = np.zeros_like(self._own)
        rows, tokens = self._all.sum(axis=0).tolist()
        return Masked(rows=rows, tokens=tokens)

    def _gathered(self, group: Any) -> dict[int, Ints]:
        """What each rank counted; those that read the same say the same."""
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            raise UsageError(
                f"What the other {self._ranks - 1} ranks masked is known to them alone: call "
                "torch.distributed.init_process_group first."
            )
        found: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(found, (self._rank, self._own), group=group)
        return dict(found)

    def state(self) -> dict[str, Any]:
        """What a state holds of it."""
        counts = self._all + self._own if self._ranks == 1 else self._all
        of_epoch = {"epoch": _named(counts[_EPOCH])} if self._again else {}
        return {STATE_KEY: _named(counts.sum(axis=0)) | of_epoch}

    def go_on(self, state: Mapping[str, Any], *, begins: bool) -> None:
        """Go on from a state.

        Args:
            state: as it was saved.
            begins: whether an epoch begins where it goes on.
        """
        none = {"rows": 0, "tokens": 0}
        saved = state.get(STATE_KEY, none)
        epoch = saved.get("epoch", none)
        self._own[:] = 0
        for column, name in enumerate(none):
            self._all[:, column] = saved[name] - epoch[name], epoch[name]
        if begins:
            self.next_epoch()


def _named(counts: Ints) -> dict[str, int]:
    rows, tokens = counts.tolist()
    return {"rows": rows, "tokens": tokens}
