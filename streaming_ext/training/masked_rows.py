"""What the row filter masked, counted by each rank and summed by all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.order.ranks import DataRank, gather

STATE_KEY: Final = "masked"  # of a state
_OWN, _ALL = 0, 1  # of this rank since `all_ranks`, and of all ranks at the last call of it
_BEFORE, _EPOCH = 0, 1  # of the epochs before this one, and of this one


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
    """The counts of one loader: of the epochs before this one, and of this one by itself.

    An epoch that is not finished may restart: then its counts are taken back.
    """

    def __init__(self, rank: DataRank, *, again: bool) -> None:
        """Begin with nothing.

        Args:
            rank: data-parallel rank.
            again: whether an epoch may restart; a state then holds its counts by themselves.
        """
        self._rank, self._again = rank, again
        # rows and tokens: (_OWN and _ALL, _BEFORE and _EPOCH, 2)
        self._counts: Ints = np.zeros((2, 2, 2), np.int64)

    def add(self, rows: int, length: int) -> None:
        """Count some rows of `length` tokens."""
        self._counts[_OWN, _EPOCH] += (rows, rows * length)

    def next_epoch(self) -> None:
        """An epoch begins; the one before it cannot restart any more."""
        self._counts[:, _BEFORE] += self._counts[:, _EPOCH]
        self.epoch_again()

    def epoch_again(self) -> None:
        """The epoch restarts."""
        self._counts[:, _EPOCH] = 0

    def all_ranks(self, group: Any) -> Masked:
        """Of all ranks, which call this together.

        Args:
            group: torch process group with every data-parallel rank; None for the default one.

        Raises:
            UsageError: there is no group, or not every rank is in it.
        """
        own, known = self._counts
        ranks = [[own]]
        if self._rank.size > 1:
            ranks = gather(
                self._rank,
                own,
                group,
                why=f"What the other {self._rank.size - 1} ranks masked is known to them alone: "
                "call torch.distributed.init_process_group first.",
            )
        known += sum(each[0] for each in ranks)  # ranks that read the same count the same
        own[:] = 0
        rows, tokens = known.sum(axis=0).tolist()
        return Masked(rows=rows, tokens=tokens)

    def state(self) -> dict[str, Any]:
        """What a state holds of it."""
        counts = self._counts.sum(axis=0) if self._rank.size == 1 else self._counts[_ALL]
        of_epoch = {"epoch": _named(counts[_EPOCH])} if self._again else {}
        return {STATE_KEY: _named(counts.sum(axis=0)) | of_epoch}

    def resume(self, state: Mapping[str, Any], *, begins: bool) -> None:
        """Take the counts of a state.

        Args:
            state: as it was saved.
            begins: whether training resumes at the beginning of an epoch.
        """
        none = {"rows": 0, "tokens": 0}
        saved = state.get(STATE_KEY, none)
        epoch = saved.get("epoch", none)
        self._counts[:] = 0
        for column, name in enumerate(none):
            self._counts[_ALL, :, column] = saved[name] - epoch[name], epoch[name]
        if begins:
            self.next_epoch()


def _named(counts: Ints) -> dict[str, int]:
    rows, tokens = counts.tolist()
    return {"rows": rows, "tokens": tokens}
