"""Rows in which a few tokens repeat again and again, which make the loss of a step jump.

Tokens that repeat with period p equal those p offsets later. So an n-gram that repeats more than k
times in a row gives at least p * k consecutive such offsets. One of every p * k offsets is among
them, with half of them before or after it: so looking there clears nearly all rows.
"""

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints

LONGEST: Final = 13  # tokens of an n-gram
_NEAR: Final = 4  # offsets looked at before and after


def repeats_more(
    tokens: npt.NDArray[np.integer[Any]], times: int, *, eot_id: int
) -> npt.NDArray[np.bool_]:
    """Whether some n-gram of 1 to 13 tokens occurs more than `times` times in a row.

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
