"""The boundaries of documents spread over the tokens of a step: a value a token.

What is many small steps elsewhere is a few large copies here. Positions, which are most of the
work, are laid down in granules: copies from one row of counting numbers, each begun at the position
that its first token has; then a granule from zero at the start of every segment.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints, windows
from streaming_ext.batches.buffers import Buffers
from streaming_ext.batches.masks import IGNORED, Boundaries, Small

_GRANULE: Final = 128  # tokens copied at once


class Spread:
    """The masks of the steps that some boundaries are of, made one step at a time."""

    def __init__(
        self,
        boundaries: Boundaries,
        *,
        shape: tuple[int, int],
        names: Collection[str],
        buffers: Buffers,
    ) -> None:
        """Do once what all steps have in common.

        Args:
            boundaries: of some steps.
            shape: rows of a step and tokens of a row.
            names: any of `MASKS`.
            buffers: where arrays come from.
        """
        self.boundaries = boundaries
        self.shape = shape
        self._names = frozenset(names)
        self._buffers = buffers
        # Lists, since single numbers are taken from them faster.
        self._edge_steps: list[int] = boundaries.edge_steps.tolist()
        self._ignored_steps: list[int] = boundaries.ignored_steps.tolist()
        self._longest: list[int] = boundaries.longest.tolist()
        self._last_targets = boundaries.last_targets.reshape(-1, shape[0])
        self._starts: Ints = boundaries.edges.astype(np.int64)
        self._granules: Ints | None = None
        tokens = len(self._longest) * shape[0] * shape[1]
        if "position_ids" in self._names and len(self._starts) * _GRANULE < tokens:
            self._granules = self._positions_of_granules()

    def of_step(self, step: int, tokens: Ints) -> dict[str, Any]:
        """The masks of one step, by name.

        Args:
            step: which one.
            tokens: its rows, one behind the other in memory: (rows, length).
        """
        names = self._names
        begin, end = self._edge_steps[step], self._edge_steps[step + 1] - 1
        masks: dict[str, Any] = {}
        if "targets" in names:
            masks["targets"] = self._targets(step, tokens)
        if "position_ids" in names:
            masks["position_ids"] = self._position_ids(step, begin, end)
        if "document_ids" in names:
            boundaries = self.boundaries
            numbers = boundaries.numbers[begin:end].repeat(boundaries.lengths[begin:end])
            masks["document_ids"] = numbers.reshape(self.shape)
        if "cu_seqlens" in names:
            masks["cu_seqlens"] = self.boundaries.edges[begin : end + 1]
        if "max_seqlen" in names:
            masks["max_seqlen"] = self._longest[step]
        return masks

    def _targets(self, step: int, tokens: Ints) -> Ints:
        """The next token at each position; -100 in padding and where the shard has none."""
        targets = self._buffers.take(self.shape, np.int64)
        flat = targets.reshape(-1)
        flat[:-1] = tokens.reshape(-1)[1:]  # one copy, wrong at the last place of each row
        targets[:, -1] = self._last_targets[step]
        begin, end = self._ignored_steps[step], self._ignored_steps[step + 1]
        if begin < end:
            flat[self.boundaries.ignored[begin:end]] = IGNORED
        return targets

    def _position_ids(self, step: int, begin: int, end: int) -> Small:
        """How far each token is from where its segment starts."""
        rows, length = self.shape
        starts = self._starts[begin:end]
        if self._granules is None:  # many short documents
            first = starts.astype(np.int32).repeat(self.boundaries.lengths[begin:end])
            np.subtract(np.arange(rows * length, dtype=np.int32), first, out=first)
            return first.reshape(self.shape)
        counting = _counting(length)
        positions: Small = counting[self._granules[step]].view(np.int32)
        # In their order: what one runs beyond its segment, those of the next ones put right.
        windows(positions, _GRANULE)[starts] = counting[0]
        return positions[: rows * length].reshape(self.shape)

    def _positions_of_granules(self) -> Ints:
        """The position of the first token of each granule: (steps, granules).

        One granule more than a step fills: the last segment's may run beyond the step.
        """
        rows, length = self.shape
        granules = -(-rows * length // _GRANULE)
        ends = self.boundaries.edge_steps[1:] - 1
        # The granules that begin in each segment.
        counts = np.diff(-(-self._starts // _GRANULE), append=0)
        counts[ends] = 1
        begins = np.arange(granules + 1) * _GRANULE
        firsts = self._starts.repeat(counts).reshape(-1, granules + 1)
        positions: Ints = begins - firsts
        return positions


@lru_cache(maxsize=4)
def _counting(length: int) -> npt.NDArray[np.void]:
    """Granules from each number on, as far as one that begins in a row of `length` tokens goes."""
    numbers = np.arange(length + 2 * _GRANULE, dtype=np.int32)
    numbers.flags.writeable = False
    return windows(numbers, _GRANULE)
