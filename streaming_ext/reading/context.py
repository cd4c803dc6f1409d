"""The part of each row that one rank of a context-parallel group reads.

Balanced, rows are cut into twice as many chunks as there are ranks, and rank r takes chunk r and
the r-th from the end: with a causal mask the last chunks cost most, so all ranks have as much to
do. Contiguous, they are cut into as many chunks as there are ranks.

    4 ranks, rows of 16 tokens, balanced: rank 0 has 0, 1, 14, 15, rank 3 has 6, 7, 8, 9
    contiguous: rank 0 has 0, 1, 2, 3, rank 3 has 12, 13, 14, 15

By documents, each document of a packed row is cut as a balanced row is: attention that does not
look across documents costs most at the end of each.

    2 ranks, documents of 4 and 8 tokens: rank 0 has 0, 3 and 4, 5, 10, 11, rank 1 the others
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints, ranges
from streaming_ext.base.errors import UsageError

LAYOUTS: Final = ("balanced", "contiguous", "documents")
_PER_TOKEN: Final = ("tokens", "targets", "position_ids", "document_ids", "domain_ids")


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextSlice:
    """The offset of this process among those that share each row.

    Attributes:
        rank: from 0.
        size: how many there are.
        lengths: tokens of whole rows, all that come.
        layout: one of `LAYOUTS`.
        multiple: of tokens that each document takes in its row, None where rows are not packed.
    """

    rank: int
    size: int
    lengths: Sequence[int]
    layout: str
    multiple: int | None

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise UsageError(
                f"`cp_layout` must be one of {', '.join(map(repr, LAYOUTS))}, got {self.layout!r}."
            )
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise UsageError(
                f"`cp_rank` must be in [0, {self.size}), got {self.rank}. Give cp_rank= and "
                "cp_size= of the context-parallel group."
            )
        if self.by_documents and (self.multiple is None or self.multiple % self._chunks):
            raise UsageError(
                f"`cp_layout='documents'` cuts each document into {self._chunks} equal chunks: "
                f"give packing='best_fit' and document_multiple={self._chunks} or a multiple of "
                f"that; got {self.multiple}."
            )
        for length in self.lengths:
            if self.size > 1 and length % self._chunks:
                raise UsageError(
                    f"`sequence_length` is {length}: {self.size} context-parallel ranks need a "
                    f"multiple of {self._chunks}."
                )

    @property
    def by_documents(self) -> bool:
        """Whether batches are cut by their `cu_seqlens`."""
        return self.layout == "documents" and self.size > 1

    @property
    def _chunks(self) -> int:
        """Pieces of a row."""
        return self.size if self.layout == "contiguous" else 2 * self.size

    def cut(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch with this rank's part of what has a value a token; the rest stays."""
        if self.size == 1:
            return batch
        offsets = self._offsets(batch["cu_seqlens"]) if self.by_documents else None
        return {
            name: self._part(values, offsets) if name in _PER_TOKEN and values.ndim > 1 else values
            for name, values in batch.items()
        }

    def _offsets(self, cu_seqlens: npt.NDArray[np.int32]) -> Ints:
        """This rank's offsets in the rows of a batch laid end to end: (tokens of this rank,)."""
        edges = cu_seqlens.astype(np.int64)
        each = np.diff(edges) // self._chunks
        # begins: (segments, 2), of the chunk of its number, and of the one as far from the end
        begins = edges[:-1, None] + each[:, None] * [self.rank, self._chunks - 1 - self.rank]
        counts = np.repeat(each, 2)
        return ranges(begins.reshape(-1), counts)

    def _part(self, values: npt.NDArray[Any], offsets: Ints | None) -> npt.NDArray[Any]:
        if offsets is not None:
            return values.reshape(-1)[offsets].reshape(len(values), -1)
        # chunks: (rows, chunks of a row, tokens of a chunk)
        chunks = values.reshape(len(values), self._chunks, -1)
        own = [self.rank]
        if self.layout == "balanced":
            own.append(self._chunks - 1 - self.rank)
        chosen = chunks[:, own]
        return np.ascontiguousarray(chosen).reshape(len(values), -1)


def context_slice(
    cp_rank: int | None,
    cp_size: int | None,
    *,
    lengths: Sequence[int],
    ranks_named: bool,
    layout: str,
    multiple: int | None,
) -> ContextSlice:
    """The slice that the arguments stand for.

    Args:
        cp_rank, cp_size: given both or neither.
        lengths: tokens of a row, all that come.
        told: whether the user says which ranks read the same rows.
        layout: one of `LAYOUTS`.
        multiple: see `ContextSlice`.

    Raises:
        UsageError: they contradict each other, or nobody says which ranks read the same.
    """
    if (cp_rank is None) != (cp_size is None):
        raise UsageError(f"cp_rank={cp_rank} and cp_size={cp_size}: give both or neither.")
    size = 1 if cp_size is None else cp_size
    found = ContextSlice(
        rank=cp_rank or 0, size=size, lengths=lengths, layout=layout, multiple=multiple
    )
    if found.size > 1 and not ranks_named:
        raise UsageError(
            "Context-parallel ranks read the same rows: say which by dp_rank= with dp_world_size=, "
            "by device_mesh= or process_group= of the data-parallel ranks, or by "
            f"replication={cp_size} where they are consecutive."
        )
    return found
