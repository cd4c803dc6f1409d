"""What a batch says about documents: targets, positions and boundaries, from end-of-text ids alone.

A document ends in one end-of-text id; an end-of-text id behind another one is padding. Work is
done on the few boundaries of a batch, not on its tokens, wherever that is possible.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.order import Ints

IGNORED: Final = -100  # what torch's cross entropy leaves out
Tokens = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Some rows of a batch and what stands around them.

    Attributes:
        tokens: (rows, length).
        before: the token before each row, in `before_known` only: (rows,).
        before_known: whether the shard of the row's first token holds it: (rows,).
        after: the token after each row, in `after_known` only: (rows,).
        after_known: whether the shard of the row's last token holds it: (rows,).
        real: False for rows that only fill up a batch: (rows,).
    """

    tokens: Tokens
    before: Tokens
    before_known: Flags
    after: Tokens
    after_known: Flags
    real: Flags


class Boundaries:
    """Where documents and padding begin and end in the rows of a batch laid end to end."""

    def __init__(self, rows: Rows, eot_id: int) -> None:
        """Find every end-of-text id, and which of them are padding."""
        self._rows = rows
        self._eot = eot_id
        self.shape = rows.tokens.shape
        count, length = self.shape
        # A token before a shard's first one is never padding: every sample begins with a document.
        ends = np.flatnonzero(rows.tokens.reshape(-1) == eot_id)  # (ends,)
        row, column = np.divmod(ends, length)
        follows = np.zeros(len(ends), bool)
        follows[1:] = ends[1:] == ends[:-1] + 1
        previous = rows.before_known & (rows.before == eot_id)
        is_padding = np.where(column == 0, previous[row], follows)
        self.padding = ends[is_padding]
        # A segment begins at each row and behind each end, but not within padding.
        goes_on = np.zeros(len(ends), bool)
        goes_on[:-1] = is_padding[:-1] & (ends[1:] == ends[:-1] + 1)
        begins = ends[(column < length - 1) & ~goes_on] + 1
        self.starts: Ints = np.concatenate([np.arange(count) * length, begins])
        self.starts.sort()
        self.lengths: Ints = np.diff(self.starts, append=count * length)

    def targets(self) -> Ints:
        """The next token at each position; -100 in padding and where the shard has none."""
        rows, (_, length) = self._rows, self.shape
        targets = np.empty(self.shape, np.int64)
        targets[:, :-1] = rows.tokens[:, 1:]
        padding_follows = (rows.tokens[:, -1] == self._eot) & (rows.after == self._eot)
        targets[:, -1] = np.where(
            rows.after_known & ~padding_follows, rows.after.astype(np.int64), IGNORED
        )
        flat = targets.reshape(-1)
        flat[self.padding] = IGNORED
        flat[self.padding[self.padding % length > 0] - 1] = IGNORED
        if not rows.real.all():
            targets[~rows.real] = IGNORED
        return targets

    def position_ids(self) -> Ints:
        """Places within the row's part of each document, from 0."""
        count, length = self.shape
        first = np.repeat(self.starts, self.lengths)
        return np.subtract(_places(count * length), first, out=first).reshape(self.shape)

    def document_ids(self) -> Ints:
        """Numbers of the documents of each row, from 0; padding counts as one."""
        length = self.shape[1]
        row_start = self.starts // length * length
        number = np.arange(len(self.starts)) - np.searchsorted(self.starts, row_start)
        return np.repeat(number, self.lengths).reshape(self.shape)

    def cu_seqlens(self) -> npt.NDArray[np.int32]:
        """Boundaries in the batch laid end to end, as flash-attention's varlen calls want them."""
        count, length = self.shape
        return np.append(self.starts, count * length).astype(np.int32)

    def max_seqlen(self) -> int:
        """The longest segment, in tokens."""
        return int(self.lengths.max())


@lru_cache(maxsize=4)
def _places(count: int) -> Ints:
    places = np.arange(count)
    places.flags.writeable = False
    return places
