"""How many bits an id has, where nothing but the ids tells it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_LOOKED_AT = 2**12  # ids
_TELLING = 64  # ids of which every other one is 0, which no text gives
_MOST_BITS = 64


@dataclass(frozen=True, slots=True)
class WiderType:
    """What ids are that were read with too few bits.

    Attributes:
        name: of their type.
        told: how it shows, for messages.
    """

    name: str
    told: str


def wider_type(ids: npt.NDArray[Any]) -> WiderType | None:
    """The type of ids that were read with half of their bits, or fewer.

    Args:
        ids: (ids,), as they were read, from the beginning of a file or of a shard.

    Returns:
        None where the ids do not show it: not all but one of 2, 4 or 8 are 0.
    """
    first = ids[:_LOOKED_AT]
    bits = own = 8 * ids.itemsize
    while bits < _MOST_BITS and len(first) >= _TELLING and _has_gaps(first):
        first, bits = first[::2], 2 * bits
    if bits == own:
        return None
    return WiderType(
        name="int64" if bits == _MOST_BITS else f"uint{bits}",
        told=f"all but one of {bits // own} ids are 0, so they have {bits} bits and not {own}",
    )


def _has_gaps(ids: npt.NDArray[Any]) -> bool:
    """Whether every other id is 0, and most between are not: rows may be filled up with 0."""
    return not ids[1::2].any() and 4 * np.count_nonzero(ids) >= len(ids)
