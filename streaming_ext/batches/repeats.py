"""Rows in which a few tokens repeat again and again, which make the loss of a step jump.

Tokens that repeat with a period p are equal to those p places on. So n-grams that stand more than k
times behind each other are a run of at least p * k such places, and one of every p * k places is in
it, with half of the run before it or behind it. Looking there tells nearly all rows to be clean.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

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
    rows, length = tokens.shape
    found = np.zeros(rows, bool)
    for period in range(1, LONGEST + 1):
        run = period * times
        last = length - period  # places that have a token one period on
        places = np.arange(run - 1, last, run)
        if not places.size:
            break
        row, column = np.nonzero(tokens[:, places] == tokens[:, places + period])
        near = np.arange(min(_NEAR, run // 2) + 1)
        before = places[column][:, None] - near
        behind = np.minimum(places[column][:, None] + near, last - 1)
        row_ = row[:, None]
        long = (tokens[row_, before] == tokens[row_, before + period]).all(axis=1)
        long |= (tokens[row_, behind] == tokens[row_, behind + period]).all(axis=1)
        for maybe in np.unique(row[long]).tolist():  # hardly any
            found[maybe] |= _longest_run(tokens[maybe], period, eot_id) >= run
    return found


def _longest_run(tokens: npt.NDArray[np.integer[Any]], period: int, eot_id: int) -> int:
    """The most places behind each other that are equal to those one period on."""
    same = tokens[:-period] == tokens[period:]
    is_end = tokens == eot_id
    same &= ~(is_end[:-1] & is_end[1:])[: len(same)]
    ends = np.flatnonzero(np.concatenate([[True], ~same, [True]]))
    return int(np.diff(ends).max()) - 1
