"""Arrays that come back: memory that training has let go of holds a later batch.

The C library returns large blocks to the system when they are freed, and the system clears every
page of them when they are asked for again, which costs more than filling them.
"""

import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_KEPT: Final = 16  # arrays of a kind; who holds more batches gets new memory
_OWN_REFERENCES: Final = 3  # the list, the variable and the argument of getrefcount


class Buffers:
    """Hands out arrays that nobody else refers to.

    A tensor made by `torch.from_numpy`, and every view of it, refers to its array: memory is used
    again only when the last of them is gone.
    """

    def __init__(self) -> None:
        """Start with nothing."""
        self._kinds: dict[tuple[tuple[int, ...], type], list[npt.NDArray[Any]]] = {}

    def take(self, shape: tuple[int, ...], dtype: type) -> npt.NDArray[Any]:
        """An array of any content."""
        kept = self._kinds.setdefault((shape, dtype), [])
        for array in kept:
            if sys.getrefcount(array) == _OWN_REFERENCES:
                return array
        array = np.empty(shape, dtype)
        if len(kept) < _KEPT:
            kept.append(array)
        return array

    def __getstate__(self) -> dict[str, object]:
        """Nothing goes to another process."""
        return {"_kinds": {}}
