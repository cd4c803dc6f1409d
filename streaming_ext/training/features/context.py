"""The part of each row that one rank of a context-parallel group reads.

The layout `balanced` cuts rows into twice as many chunks as there are ranks, and rank r takes chunk
r and the r-th from the end. With a causal mask the last chunks cost most, so this gives all ranks
the same work. The layout `contiguous` cuts rows into as many chunks as there are ranks.

    4 ranks, rows of 16 tokens, balanced: rank 0 has 0, 1, 14, 15, rank 3 has 6, 7, 8, 9
    contiguous: rank 0 has 0, 1, 2, 3, rank 3 has 12, 13, 14, 15

The layout `documents` cuts each document of a packed row like a balanced row: attention within
documents costs most at the end of each document.

    2 ranks, documents of 4 and 8 tokens: rank 0 has 0, 3 and 4, 5, 10, 11, rank 1 the others
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints, ranges
from streaming_ext.base.errors import UsageError
from streaming_ext.order.ranks import RankPosition

LAYOUTS: Final = ("balanced", "contiguous", "documents")


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextSlice:
    """The part of each row that this process reads.

    Attributes:
        rank: the rank within the group, from 0.
        size: the number of ranks that read the same rows.
        layout: one of `LAYOUTS`.
    """

    rank: int
    size: int
    layout: str

    @property
    def chunks(self) -> int:
        """The number of chunks of a row."""
        return self.size if self.layout == "contiguous" else 2 * self.size

    def cut(self, batch: dict[str, Any], divided: Collection[str]) -> dict[str, Any]:
        """Cut columns with a value per token to this rank's part; the other columns stay.

        Args:
            batch: the whole batch.
            divided: the names of columns with a value per token.
        """
        offsets = self._offsets(batch["cu_seqlens"]) if self.layout == "documents" else None
        return {
            name: self._part(values, offsets) if name in divided else values
            for name, values in batch.items()
        }

    def _offsets(self, cu_seqlens: npt.NDArray[np.int32]) -> Ints:
        """Return this rank's offsets in the rows of a batch, end to end: (tokens of this rank,)."""
        edges = cu_seqlens.astype(np.int64)
        each = np.diff(edges) // self.chunks
        # begins: (segments, 2), of this rank's chunk from the start and its chunk from the end
        begins = edges[:-1, None] + each[:, None] * [self.rank, self.chunks - 1 - self.rank]
        counts = np.repeat(each, 2)
        return ranges(begins.reshape(-1), counts)

    def _part(self, values: npt.NDArray[Any], offsets: Ints | None) -> npt.NDArray[Any]:
        if offsets is not None:
            return values.reshape(-1)[offsets].reshape(len(values), -1)
        # chunks: (rows, chunks of a row, tokens of a chunk)
        chunks = values.reshape(len(values), self.chunks, -1)
        own = [self.rank]
        if self.layout == "balanced":
            own.append(self.chunks - 1 - self.rank)
        chosen = chunks[:, own]
        return np.ascontiguousarray(chosen).reshape(len(values), -1)


def context_slice(
    position: RankPosition, *, lengths: Sequence[int], multiple: int | None
) -> ContextSlice | None:
    """Return the slice of a rank; None if the rank reads whole rows.

    Args:
        position: the ranks that the user names.
        lengths: all lengths of rows that occur, in tokens.
        multiple: the multiple of tokens to which packed documents are rounded up; None if rows
            are not packed.

    Raises:
        UsageError: fields contradict each other, or no field says which ranks read the same rows.
    """
    rank, size, layout = position.cp_rank, position.cp_size, position.cp_layout
    if layout not in LAYOUTS:
        raise UsageError(
            f"`cp_layout` must be one of {', '.join(map(repr, LAYOUTS))}, got {layout!r}."
        )
    if rank is None and size is None:
        rank, size = 0, 1
    if rank is None or size is None or not 0 <= rank < size:
        raise UsageError(
            f"Give cp_rank= and cp_size= of the context-parallel group, or neither; `cp_rank` must "
            f"be in [0, cp_size), got cp_rank={rank} and cp_size={size}."
        )
    if size == 1:
        return None
    found = ContextSlice(rank=rank, size=size, layout=layout)
    chunks = found.chunks
    if layout == "documents" and (multiple is None or multiple % chunks):
        raise UsageError(
            f"`cp_layout='documents'` cuts each document into {chunks} equal chunks: give "
            f"packing='best_fit' and document_multiple={chunks} or a multiple of that; got "
            f"{multiple}."
        )
    if wrong := [length for length in lengths if length % chunks]:
        raise UsageError(
            f"`sequence_length` is {wrong[0]}: {size} context-parallel ranks need a multiple of "
            f"{chunks}."
        )
    if not position.named:
        raise UsageError(
            "Context-parallel ranks read the same rows: say which by dp_rank= with dp_world_size=, "
            "by device_mesh= or process_group= of the data-parallel ranks, or by "
            f"replication={size} if they are consecutive."
        )
    return found
