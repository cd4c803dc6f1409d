"""How deep the values of a JSON text may be nested: the same however and wherever it is read."""

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
MAX_DEPTH: Final = 400  # as of CBOR; parsers of JSON give up at depths of their own
_SHALLOW_BYTES: Final = 2 * MAX_DEPTH  # no value of so many is nested deeper
_WINDOW_BYTES: Final = 2**15
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def is_too_deep(data: bytes | memoryview) -> bool:
    """Whether values are nested deeper than is read; brackets within strings do not count."""
    if len(data) <= _SHALLOW_BYTES:
        return False
    text = bytes(data)
    if _opens(np.frombuffer(text, np.uint8)) <= MAX_DEPTH:
        return False
    # Without escapes each quotation mark begins or ends a string.
    parts = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    brackets = b"".join(parts[::2]).translate(None, _NO_BRACKETS)
    if len(brackets) <= MAX_DEPTH:
        return False
    found = np.frombuffer(brackets, np.uint8)
    steps = np.where((found == ord("[")) | (found == ord("{")), 1, -1)
    return int(np.cumsum(steps).max()) > MAX_DEPTH


def may_be_deep(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> Ints:
    """The lines of a block near which so many brackets open that one must be looked at alone."""
    windows = range(0, len(data), _WINDOW_BYTES)
    counts = [_opens(data[at : at + _WINDOW_BYTES]) for at in windows]
    sums = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    near = sums[-(-ends // _WINDOW_BYTES)] - sums[starts // _WINDOW_BYTES]
    lines = np.flatnonzero((ends - starts > _SHALLOW_BYTES) & (near > MAX_DEPTH))
    alone = [_opens(data[starts[line] : ends[line]]) > MAX_DEPTH for line in lines]
    found: Ints = lines[np.array(alone, bool)]
    return found


def _opens(data: npt.NDArray[np.uint8]) -> int:
    """How many brackets open: `[` and `{` are one bit apart."""
    return int(np.count_nonzero((data | 0x20) == ord("{")))
