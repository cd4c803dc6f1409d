"""Types of arrays, and arithmetic that NumPy lacks."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Tokens = npt.NDArray[np.integer[Any]]  # ids, or other whole numbers, of any type
Whole = TypeVar("Whole", int, Ints)


def ceil_div(number: Whole, divisor: int) -> Whole:
    """Divide and round up: ceil_div(7, 4) is 2."""
    return -(-number // divisor)


def windows(values: npt.NDArray[Any], width: int) -> npt.NDArray[np.void]:
    """View every window of `width` values as one element, which NumPy moves at once.

    The result shares the memory of `values`: (values - width + 1,).
    """
    count = values.size - width + 1
    return np.ndarray((count,), f"V{width * values.itemsize}", values, strides=(values.itemsize,))


def ranges(firsts: Ints, counts: Ints) -> Ints:
    """Concatenate runs of consecutive numbers, given their firsts and counts: (sum of counts,).

    ranges([5, 0], [2, 3]) is [5, 6, 0, 1, 2].
    """
    numbers: Ints = np.repeat(firsts - np.cumsum(counts) + counts, counts)
    numbers += np.arange(len(numbers))
    return numbers


def look_up(known: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> tuple[Flags, Ints]:
    """Look up numbers, or bytes, among known ones in ascending order.

    look_up([2, 5, 9], [9, 1]) is [True, False] and [2].

    Returns:
        True for each wanted value that is known: (wanted,); the positions of these: (found,).
    """
    if not len(known):
        return np.zeros(len(wanted), np.bool_), np.empty(0, np.int64)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    is_known: Flags = known[at] == wanted
    return is_known, at[is_known]


def scrambled(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit words one to one and in place, with SplitMix64's finalizer."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
