"""Rows in which a few tokens repeat again and again, which make the loss of a step jump.

Tokens that repeat with period p equal those p offsets later. So an n-gram that repeats more than k
times in a row gives at least p * k consecutive such offsets. One of every p * k offsets is among
them, with half of them before or after it: so looking there clears nearly all rows.
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
_NEAR: Final = 4  # offsets looked at before and after


def repeats_more(
    tokens: npt.NDArray[np.integer[Any]], times: int, *, eot_id: int
) -> npt.NDArray[np.bool_]:
    """Find the rows in which some n-gram of 1 to 13 tokens comes more than `times` times in a row.

    Args:
        tokens: (rows, length).
        times: at least 1.
        eot_id: two of these in a row are padding, which does not count.

    Returns:
        (rows,).
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
        if not found[maybe]:  # hardly any comes here
            found[maybe] = _longest_run(tokens[maybe], step, eot_id) >= step * times
    return found


@lru_cache(maxsize=8)
def _looked_at(length: int, times: int) -> tuple[Ints, Ints, Ints]:
    """Offsets in a row, the period of each, and how many offsets have a token a period later."""
    offsets, periods, lasts = [], [], []
    for period in range(1, LONGEST + 1):
        last = length - period
        own = np.arange(period * times - 1, max(last, 0), period * times)
        offsets.append(own)
        periods.append(np.full_like(own, period))
        lasts.append(np.full_like(own, last))
    return np.concatenate(offsets), np.concatenate(periods), np.concatenate(lasts)


def _longest_run(tokens: npt.NDArray[np.integer[Any]], period: int, eot_id: int) -> int:
    """The most consecutive offsets whose token equals the one a period later."""
    same = tokens[:-period] == tokens[period:]
    is_end = tokens == eot_id
    same &= ~(is_end[:-1] & is_end[1:])[: len(same)]
    ends = np.flatnonzero(np.concatenate([[True], ~same, [True]]))
    return int(np.diff(ends).max()) - 1


class RepeatFilter(RowColumn):
    """Rows in which an n-gram repeats too often do not count: `real` is False for them."""

    name = "real"

    def __init__(self, times: int) -> None:
        """Allow an n-gram this many times in a row."""
        self._times = times

    def identity(self) -> dict[str, Any]:
        """The number of times that an n-gram may repeat."""
        return {"max_repeated_ngram": self._times}

    def add(self, batch: Batch, read: ReadRows) -> None:
        """Add `real`, and which rows the filter masked."""
        repeats = repeats_more(read.tokens, self._times, eot_id=read.eot_id)
        batch[self.name], batch[MASKED] = read.real & ~repeats, read.real & repeats


STATE_KEY: Final = MASKED  # of a state
_OWN, _ALL = 0, 1  # of this rank since `all_ranks`, and of all ranks at the last call of it
_BEFORE, _EPOCH = 0, 1  # of the epochs before this one, and of this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Masked:
    """Rows that a filter masked.

    Attributes:
        rows: the number of rows.
        tokens: their tokens, padding counted.
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
            again: True if an epoch may restart; a state then holds its counts by themselves.
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
        """Sum the counts of all ranks, which call this together.

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
        """The counts as a state holds them."""
        counts = self._counts.sum(axis=0) if self._rank.size == 1 else self._counts[_ALL]
        of_epoch = {"epoch": _named(counts[_EPOCH])} if self._again else {}
        return {STATE_KEY: _named(counts.sum(axis=0)) | of_epoch}

    def resume(self, state: Mapping[str, Any], *, begins: bool) -> None:
        """Take the counts of a state.

        Args:
            state: as it was saved.
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
