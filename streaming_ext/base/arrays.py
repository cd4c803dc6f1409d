"""Types of arrays, and windows of values as single elements, which numpy moves as one."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Tokens = npt.NDArray[np.integer[Any]]  # ids, of any type


def windows(values: npt.NDArray[Any], width: int) -> npt.NDArray[np.void]:
    """Every window of `width` values, in the memory of `values`: (values - width + 1,)."""
    count = values.size - width + 1
    return np.ndarray((count,), f"V{width * values.itemsize}", values, strides=(values.itemsize,))


def ranges(firsts: Ints, counts: Ints) -> Ints:
    """Consecutive numbers from each first on, end to end: (sum of counts,).

    ranges([5, 0], [2, 3]) is [5, 6, 0, 1, 2].
    """
    numbers: Ints = np.repeat(firsts - np.cumsum(counts) + counts, counts)
    numbers += np.arange(len(numbers))
    return numbers
