"""Amounts as users write them: `200gb`, `64M`."""

import re
from decimal import Decimal

from streaming_ext.base.errors import UsageError

_BYTES = {"": 1, "b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40, "pb": 2**50}
# The largest first.
_UNITS = [
    unit
    for number, prefix in ((4, "T"), (3, "G"), (2, "M"), (1, "K"))
    for unit in ((f"{prefix}iB", 1024**number), (f"{prefix}B", 1000**number))
]
COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def size_text(num_bytes: int) -> str:
    """Write a size as users do: `64MiB`, `1500KB`; in bytes if no unit divides it."""
    for unit, size in _UNITS:
        if num_bytes and num_bytes % size == 0:
            return f"{num_bytes // size}{unit}"
    return f"{num_bytes}B"


def parse_bytes(value: int | str | None, *, name: str) -> int | None:
    """Parse a whole number of bytes or a text such as `200gb`, in powers of 1024 as in MDS."""
    return _parse(value, _BYTES, name)


def parse_count(value: int | str | None, *, name: str) -> int | None:
    """Parse a count, given as a whole number or a text such as `64M`."""
    return _parse(value, COUNTS, name)


def _parse(value: int | str | None, units: dict[str, int], name: str) -> int | None:
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
    if match is None or match[2] not in units or not (amount := Decimal(match[1])):
        raise UsageError(
            f"`{name}` must be a whole number above 0, with a unit of "
            f"{', '.join(filter(None, units))} if wanted; got {value!r}."
        )
    return int(amount * units[match[2]])
