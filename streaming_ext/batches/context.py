"""The part of each row that one rank of a context-parallel group reads.

Rows are cut into twice as many pieces as there are ranks, and rank r takes piece r and the r-th
from the end: with a causal mask the last pieces cost most, so all ranks have as much to do.

    4 ranks, rows of 16 tokens in pieces of 2: rank 0 has 0, 1, 14, 15, rank 3 has 6, 7, 8, 9
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.errors import UsageError

_PER_TOKEN: Final = ("tokens", "targets", "position_ids", "document_ids")


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextSlice:
    """The place of this process among those that share each row.

    Attributes:
        rank: from 0.
        size: how many there are.
        lengths: tokens of whole rows, all that come.
    """

    rank: int
    size: int
    lengths: Sequence[int]

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise UsageError(
                f"`cp_rank` must be in [0, {self.size}), got {self.rank}. Give cp_rank= and "
                "cp_size= of the context-parallel group."
            )
        for length in self.lengths:
            if self.size > 1 and length % (2 * self.size):
                raise UsageError(
                    f"`sequence_length` is {length}: {self.size} context-parallel ranks need a "
                    f"multiple of {2 * self.size}."
                )

    def cut(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch with this rank's part of what has a value a token; the rest stays."""
        if self.size == 1:
            return batch
        return {
            name: self._part(values) if name in _PER_TOKEN else values
            for name, values in batch.items()
        }

    def _part(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # pieces: (rows, 2 size, tokens of a piece)
        pieces = values.reshape(len(values), 2 * self.size, -1)
        chosen = pieces[:, [self.rank, 2 * self.size - 1 - self.rank]]
        return np.ascontiguousarray(chosen).reshape(len(values), -1)


def context_slice(
    cp_rank: int | None, cp_size: int | None, *, lengths: Sequence[int], told: bool
) -> ContextSlice:
    """The slice that the arguments stand for.

    Args:
        cp_rank, cp_size: given both or neither.
        lengths: tokens of a row, all that come.
        told: whether the user says which ranks read the same rows.

    Raises:
        UsageError: they contradict each other, or nobody says which ranks read the same.
    """
    if (cp_rank is None) != (cp_size is None):
        raise UsageError(f"cp_rank={cp_rank} and cp_size={cp_size}: give both or neither.")
    size = 1 if cp_size is None else cp_size
    found = ContextSlice(rank=cp_rank or 0, size=size, lengths=lengths)
    if found.size > 1 and not told:
        raise UsageError(
            "Context-parallel ranks read the same rows: say which by dp_rank= with dp_world_size=, "
            "by device_mesh= or process_group= of the data-parallel ranks, or by "
            f"replication={cp_size} where they are consecutive."
        )
    return found
