"""Values in Thrift's compact encoding, as the heads of Parquet files have them.

A structure is a mapping from the numbers of its fields, in ascending order, to their values.
"""

from collections.abc import Mapping, Sequence

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


class I32(int):
    """An integer of 32 bits; any other `int` is one of 64."""


def struct(fields: Mapping[int, object]) -> bytes:
    """A structure.

    Args:
        fields: values by the numbers of their fields.
    """
    parts, last = [], 0
    for number, value in fields.items():
        parts += [bytes([number - last << 4 | _kind(value)]), _encoded(value)]
        last = number
    return b"".join([*parts, b"\0"])


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _kind(value: object) -> int:
    match value:
        case I32():
            return _I32
        case int():
            return _I64
        case str():
            return _BINARY
        case Mapping():
            return _STRUCT
        case Sequence():
            return _LIST
    raise TypeError(f"{type(value).__name__} has no place in Thrift")


def _encoded(value: object) -> bytes:
    match value:
        case int():
            return varint(value << 1 if value >= 0 else ~(value << 1))
        case str():
            data = value.encode()
            return varint(len(data)) + data
        case Mapping():
            return struct(value)
        case Sequence():
            kind = _kind(value[0]) if value else _STRUCT
            head = bytes([len(value) << 4 | kind]) if len(value) < 15 else (
                bytes([0xF0 | kind]) + varint(len(value))
            )  # fmt: skip
            return head + b"".join(map(_encoded, value))
    raise TypeError(f"{type(value).__name__} has no place in Thrift")
