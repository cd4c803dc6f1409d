"""A filter of rows in which a few tokens repeat again and again, which make the loss jump.

Tokens that repeat with period p equal the tokens p offsets later. So an n-gram of p tokens that
repeats more than k times in a row gives a run of at least p * k such offsets. One of every p * k
offsets lies in the run, with half of the run before or after it. So a look at these offsets and
their neighbours clears nearly all rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from streaming_ext.order.ranks import DataRank, gather
from streaming_ext.training.columns import MASKED, Batch, ReadRows, RowColumn

LONGEST: Final = 13  # tokens of an n-gram
_NEAR: Final = 4  # offsets that are compared before and after


def repeats_more(
    tokens: npt.NDArray[np.integer[Any]], times: int, *, eot_id: int
) -> npt.NDArray[np.bool_]:
    """Find the rows in which some n-gram of 1 to 13 tokens comes more than `times` times in a row.

    Args:
        tokens: the ids of the rows: (rows, length).
        times: the allowed number of times, at least 1.
        eot_id: the id that ends a document; two in a row are padding, which does not count.

    Returns:
        True for these rows: (rows,).
    """
    found = np.zeros(len(tokens), bool)
    offsets, periods, lasts = _looked_at(tokens.shape[1], times)
    # offsets of all periods at once: (rows, offsets)
    row, at = np.nonzero(tokens.take(offsets, axis=1) == tokens.take(offsets + periods, axis=1))
    if not row.size:
        return found
    offset, period, last, owner = offsets[at], periods[at], lasts[at], row[:, None]
    # (offsets that have an equal, offsets near each)
    near = np.minimum(np.arange(_NEAR + 1), (period * times // 2)[:, None])
    before = offset[:, None] - near
    later = np.minimum(offset[:, None] + near, last[:, None] - 1)
    on = period[:, None]
    long = (tokens[owner, before] == tokens[owner, before + on]).all(axis=1)
    long |= (tokens[owner, later] == tokens[owner, later + on]).all(axis=1)
    for maybe, step in set(zip(row[long].tolist(), period[long].tolist(), strict=True)):
        if not found[maybe]:  # few rows come here
            found[maybe] = _longest_run(tokens[maybe], step, eot_id) >= step * times
    return found


@lru_cache(maxsize=8)
def _looked_at(length: int, times: int) -> tuple[Ints, Ints, Ints]:
    """Return offsets, their periods, and how many offsets of a row have a token a period later."""
    offsets, periods, lasts = [], [], []
    for period in range(1, LONGEST + 1):
        last = length - period
        own = np.arange(period * times - 1, max(last, 0), period * times)
        offsets.append(own)
        periods.append(np.full_like(own, period))
        lasts.append(np.full_like(own, last))
    return np.concatenate(offsets), np.concatenate(periods), np.concatenate(lasts)


def _longest_run(tokens: npt.NDArray[np.integer[Any]], period: int, eot_id: int) -> int:
    """Return the length of the longest run of tokens that equal the token a period later."""
    same = tokens[:-period] == tokens[period:]
    is_end = tokens == eot_id
    same &= ~(is_end[:-1] & is_end[1:])[: len(same)]
    ends = np.flatnonzero(np.concatenate([[True], ~same, [True]]))
    return int(np.diff(ends).max()) - 1


class RepeatFilter(RowColumn):
    """The column `real`, False also for rows in which an n-gram repeats too often."""

    name = "real"

    def __init__(self, times: int) -> None:
        """Allow an n-gram this many times in a row."""
        self._times = times

    def identity(self) -> dict[str, Any]:
        """Return the number of times that an n-gram may repeat."""
        return {"max_repeated_ngram": self._times}

    def add(self, batch: Batch, read: ReadRows) -> None:
        """Add `real`, and flags of the rows that the filter masked."""
        repeats = repeats_more(read.tokens, self._times, eot_id=read.eot_id)
        batch[self.name], batch[MASKED] = read.real & ~repeats, read.real & repeats


STATE_KEY: Final = MASKED  # of a state
_OWN, _ALL = 0, 1  # this rank since the last `all_ranks`, and all ranks at that call
_BEFORE, _EPOCH = 0, 1  # the epochs before this one, and this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Masked:
    """Rows that a filter masked.

    Attributes:
        rows: the number of rows.
        tokens: the tokens of these rows, including padding.
    """

    rows: int = 0
    tokens: int = 0


class MaskedCount:
    """The counts of masked rows of one loader, for this epoch and for the epochs before it.

    If an unfinished epoch restarts, its counts are taken back.
    """

    def __init__(self, rank: DataRank, *, again: bool) -> None:
        """Start with counts of zero.

        Args:
            rank: the data-parallel rank.
            again: True if an epoch may restart; a state then holds its counts separately.
        """
        self._rank, self._again = rank, again
        # rows and tokens: (_OWN and _ALL, _BEFORE and _EPOCH, 2)
        self._counts: Ints = np.zeros((2, 2, 2), np.int64)

    def add(self, rows: int, length: int) -> None:
        """Count some rows of `length` tokens."""
        self._counts[_OWN, _EPOCH] += (rows, rows * length)

    def next_epoch(self) -> None:
        """Begin an epoch; the epoch before it cannot restart any more."""
        self._counts[:, _BEFORE] += self._counts[:, _EPOCH]
        self.epoch_again()

    def epoch_again(self) -> None:
        """Restart the epoch."""
        self._counts[:, _EPOCH] = 0

    def all_ranks(self, group: Any) -> Masked:
        """Sum the counts of all ranks, which call this together.

        Args:
            group: the torch process group of all data-parallel ranks; None for the default one.

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
        """Return the counts as a state holds them."""
        counts = self._counts.sum(axis=0) if self._rank.size == 1 else self._counts[_ALL]
        of_epoch = {"epoch": _named(counts[_EPOCH])} if self._again else {}
        return {STATE_KEY: _named(counts.sum(axis=0)) | of_epoch}

    def resume(self, state: Mapping[str, Any], *, begins: bool) -> None:
        """Take the counts of a state.

        Args:
            state: the state as it was saved.
            begins: True if training resumes at the beginning of an epoch.
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
