"""How deep the values of a JSON text may be nested: the same however and wherever it is read."""

from typing import Final

import numpy as np

MAX_DEPTH: Final = 400  # as of CBOR; parsers of JSON give up at depths of their own
SHALLOW_BYTES: Final = 2 * MAX_DEPTH  # no value of so many is nested deeper
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def is_too_deep(data: bytes | memoryview) -> bool:
    """Whether values are nested deeper than is read; brackets within strings do not count."""
    if len(data) <= SHALLOW_BYTES:
        return False
    text = bytes(data)
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    # Without escapes each quotation mark begins or ends a string.
    parts = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    brackets = b"".join(parts[::2]).translate(None, _NO_BRACKETS)
    if len(brackets) <= MAX_DEPTH:
        return False
    found = np.frombuffer(brackets, np.uint8)
    steps = np.where((found == ord("[")) | (found == ord("{")), 1, -1)
    return int(np.cumsum(steps).max()) > MAX_DEPTH
