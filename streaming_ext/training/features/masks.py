"""What a batch says about documents: targets, positions and boundaries, from end-of-text ids alone.

A document ends in one end-of-text id; an end-of-text id after another one is padding. Boundaries
are few: they are found for the rows of many steps at once, and spread over the tokens of each step
only for masks with a value a token.

Masks are made by a few large copies. Positions, which are most of the work, are made of granules:
copies out of one row of counting numbers, each from the position of its first token on; then a
granule from zero at the start of every segment.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints, Small, ceil_div, ranges, windows
from streaming_ext.reading.boundaries import IGNORED, Boundaries
from streaming_ext.reading.buffers import Buffers

MASKS: Final = ("targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen")
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
        self._lengths: Small = np.diff(boundaries.edges)
        tokens = shape[0] * shape[1]
        # The first offset of each step, then the end: (steps + 1,)
        steps = np.arange(0, boundaries.edges[-1] + 1, tokens)
        edge_steps = np.searchsorted(boundaries.edges, steps)
        # Lists, since single numbers are taken from them faster.
        self._edge_steps: list[int] = edge_steps.tolist()
        self._ignored_steps: list[int] = np.searchsorted(boundaries.ignored, steps).tolist()
        self._ignored = boundaries.ignored % tokens
        # First offset of each segment in its step, and the end of each step: (segments + steps,)
        counts = np.diff(edge_steps) + 1
        edges = boundaries.edges[ranges(edge_steps[:-1], counts)]
        self._edges = edges - np.repeat(steps[:-1].astype(np.int32), counts)
        self._longest = np.maximum.reduceat(self._lengths, edge_steps[:-1]).tolist()
        self._last_targets = boundaries.last_targets.reshape(-1, shape[0])
        self._granules: Ints | None = None
        if "position_ids" in names and len(self._lengths) * _GRANULE < boundaries.edges[-1]:
            self._granules = self._positions_of_granules(edge_steps)
        if "document_ids" in names:
            # First segment of each row, then their number: (rows + 1,)
            rows = np.arange(0, boundaries.edges[-1] + 1, shape[1])
            firsts = np.searchsorted(boundaries.edges, rows)
            self._numbers = np.arange(firsts[-1], dtype=np.int32)
            self._numbers -= np.repeat(firsts[:-1].astype(np.int32), np.diff(firsts))

    def of_step(self, step: int, tokens: Ints) -> dict[str, Any]:
        """The masks of one step, by name.

        Args:
            step: which one.
            tokens: its rows, contiguous in memory: (rows, length).
        """
        names = self._names
        begin, end = self._edge_steps[step], self._edge_steps[step + 1]
        edges = self._edges[begin + step : end + step + 1]
        masks: dict[str, Any] = {}
        if "targets" in names:
            masks["targets"] = self._targets(step, tokens)
        if "position_ids" in names:
            masks["position_ids"] = self._position_ids(step, edges[:-1], self._lengths[begin:end])
        if "document_ids" in names:
            numbers = self._numbers[begin:end].repeat(self._lengths[begin:end])
            masks["document_ids"] = numbers.reshape(self.shape)
        if "cu_seqlens" in names:
            masks["cu_seqlens"] = edges
        if "max_seqlen" in names:
            masks["max_seqlen"] = self._longest[step]
        return masks

    def _targets(self, step: int, tokens: Ints) -> Ints:
        """The next token at each position; -100 in padding and after the shard."""
        targets = self._buffers.take(self.shape, np.int64)
        flat = targets.reshape(-1)
        flat[:-1] = tokens.reshape(-1)[1:]  # one copy, wrong at the last offset of each row
        targets[:, -1] = self._last_targets[step]
        begin, end = self._ignored_steps[step], self._ignored_steps[step + 1]
        if begin < end:
            flat[self._ignored[begin:end]] = IGNORED
        return targets

    def _position_ids(self, step: int, starts: Small, lengths: Small) -> Small:
        """How far each token is from where its segment starts."""
        rows, length = self.shape
        if self._granules is None:  # many short documents
            first = starts.repeat(lengths)
            np.subtract(np.arange(rows * length, dtype=np.int32), first, out=first)
            return first.reshape(self.shape)
        counting = _counting(length)
        positions: Small = counting[self._granules[step]].view(np.int32)
        # In their order: what one runs beyond its segment, those of the next ones put right.
        windows(positions, _GRANULE)[starts] = counting[0]
        return positions[: rows * length].reshape(self.shape)

    def _positions_of_granules(self, edge_steps: Ints) -> Ints:
        """The position of the first token of each granule: (steps, granules).

        One granule more than a step fills: the last segment's may run beyond the step.

        Args:
            edge_steps: first segment of each step, then their number: (steps + 1,).
        """
        steps = len(edge_steps) - 1
        size = self.shape[0] * self.shape[1]
        granules = ceil_div(size, _GRANULE) + 1
        step = np.repeat(np.arange(steps), np.diff(edge_steps))
        begins = self.boundaries.edges[:-1] - step * size
        # How many segments begin in front of each granule: (steps * granules,)
        before = np.bincount(
            step * granules + ceil_div(begins, _GRANULE), minlength=steps * granules
        )
        segments = (np.cumsum(before) - 1).reshape(steps, granules)
        positions: Ints = np.arange(granules) * _GRANULE - begins[segments]
        return positions


@lru_cache(maxsize=4)
def _counting(length: int) -> npt.NDArray[np.void]:
    """Granules from each number on, as far as one that begins in a row of `length` tokens goes."""
    numbers = np.arange(length + 2 * _GRANULE, dtype=np.int32)
    numbers.flags.writeable = False
    return windows(numbers, _GRANULE)
