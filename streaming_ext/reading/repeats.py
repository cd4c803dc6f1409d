"""Rows in which a few tokens repeat again and again, which make the loss of a step jump.

Tokens that repeat with a period p are equal to those p places on. So n-grams that stand more than k
times behind each other are a run of at least p * k such places, and one of every p * k places is in
it, with half of the run before it or behind it. Looking there tells nearly all rows to be clean.
"""

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints

LONGEST: Final = 13  # tokens of an n-gram
_NEAR: Final = 4  # places looked at before and behind


def repeats_more(
    tokens: npt.NDArray[np.integer[Any]], times: int, *, eot_id: int
) -> npt.NDArray[np.bool_]:
    """Whether some n-gram of 1 to 13 tokens stands more than so many times behind each other.

    Args:
        tokens: (rows, length).
        times: at least 1.
        eot_id: two of these behind each other are padding, which does not count.

    Returns:
        (rows,).
    """
    found = np.zeros(len(tokens), bool)
    places, periods, lasts = _looked_at(tokens.shape[1], times)
    # places of all periods at once: (rows, places)
    row, at = np.nonzero(tokens.take(places, axis=1) == tokens.take(places + periods, axis=1))
    if not row.size:
        return found
    place, period, last, owner = places[at], periods[at], lasts[at], row[:, None]
    # (places that have an equal, places near each)
    near = np.minimum(np.arange(_NEAR + 1), (period * times // 2)[:, None])
    before = place[:, None] - near
    behind = np.minimum(place[:, None] + near, last[:, None] - 1)
    on = period[:, None]
    long = (tokens[owner, before] == tokens[owner, before + on]).all(axis=1)
    long |= (tokens[owner, behind] == tokens[owner, behind + on]).all(axis=1)
    for maybe, step in set(zip(row[long].tolist(), period[long].tolist(), strict=True)):
        if not found[maybe]:  # hardly any comes here
            found[maybe] = _longest_run(tokens[maybe], step, eot_id) >= step * times
    return found


@lru_cache(maxsize=8)
def _looked_at(length: int, times: int) -> tuple[Ints, Ints, Ints]:
    """Places in a row with the period of each, and how many places have a token one period on."""
    places, periods, lasts = [], [], []
    for period in range(1, LONGEST + 1):
        last = length - period
        own = np.arange(period * times - 1, max(last, 0), period * times)
        places.append(own)
        periods.append(np.full_like(own, period))
        lasts.append(np.full_like(own, last))
    return np.concatenate(places), np.concatenate(periods), np.concatenate(lasts)


def _longest_run(tokens: npt.NDArray[np.integer[Any]], period: int, eot_id: int) -> int:
    """The most places behind each other that are equal to those one period on."""
    same = tokens[:-period] == tokens[period:]
    is_end = tokens == eot_id
    same &= ~(is_end[:-1] & is_end[1:])[: len(same)]
    ends = np.flatnonzero(np.concatenate([[True], ~same, [True]]))
    return int(np.diff(ends).max()) - 1
