"""Values of columns that are kept beside each document: of what types, and put together.

A column holds texts, whole numbers, floating ones or booleans, or nothing; each may be null. JSON's
numbers are floating ones, as everywhere.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.errors import UsageError
from streaming_ext.format.condition import Kind, comparable
from streaming_ext.format.provenance import MAX_VALUE_BYTES

_NAMES: Final = {
    pa.large_string(): "texts",
    pa.int64(): "numbers",
    pa.float64(): "numbers",
    pa.bool_(): "True and False",
}


def option_of(kind: Kind) -> str:
    """The option that asks for a column of this kind."""
    return "--keep-columns" if kind == "value" else "--where"


def asked_of(kind: Kind) -> str:
    """What is asked of a column of this kind, as the end of a message."""
    if kind == "value":
        return "--keep-columns stores texts, numbers, True and False"
    return f"--where compares it with a {kind}"


def stored(column: pa.Array) -> pa.Array:
    """A column that can be kept: one of `KEPT_TYPES`, or Arrow's type of nulls alone."""
    column = comparable(column)
    kind = column.type
    if pa.types.is_string(kind):
        return column.cast(pa.large_string())
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    return column.cast(pa.float64()) if pa.types.is_floating(kind) else column


def too_long(column: pa.Array) -> list[int]:
    """The rows of a column whose text is longer than is kept."""
    if not pa.types.is_large_string(column.type):
        return []
    long = pc.greater(pc.binary_length(column), MAX_VALUE_BYTES)
    return [int(row) for row in np.flatnonzero(np.asarray(long.fill_null(False)))]


def common_type(name: str, kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The type that columns of these types have together; that of nulls where none has another.

    Raises:
        UsageError: they have none.
    """
    there = [kind for kind in dict.fromkeys(kinds) if not pa.types.is_null(kind)]
    if not there:
        return pa.null()
    if len(there) == 1:
        return there[0]
    if {*there} == {pa.int64(), pa.float64()}:
        return pa.float64()
    raise UsageError(
        f"column {name!r} holds {' and '.join(_NAMES[kind] for kind in there)}, and --keep-columns "
        "stores values of one kind. Leave it out, or mend the sources."
    )


def joined(name: str, columns: Sequence[pa.Array]) -> pa.Array:
    """Columns of consecutive documents as one.

    Raises:
        UsageError: they hold values of several kinds.
    """
    kind = common_type(name, [column.type for column in columns])
    return pa.concat_arrays([as_kind(name, column, kind) for column in columns])


def as_kind(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as the type that it has together with others.

    Raises:
        UsageError: that cannot hold each of its values.
    """
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"column {name!r} holds whole numbers beyond 2**53 and others that are not whole, "
            "which no type holds exactly. Leave it out of --keep-columns, or store it as texts."
        ) from error


def nothing_less(column: pa.Array) -> pa.Array:
    """A column without its type where it holds nothing: lists of documents give it one."""
    return pa.nulls(len(column)) if column.null_count == len(column) else column


def differing(kept: pa.Array, found: pa.Array) -> list[int]:
    """Rows in which a column that was kept is not what its source holds: (rows,) both."""
    kept, found = nothing_less(kept), nothing_less(found)
    whole = {pa.int64(), pa.float64()}
    if kept.type != found.type and {kept.type, found.type} == whole:
        kept, found = (each.cast(pa.float64(), safe=False) for each in (kept, found))
    if kept.equals(found):
        return []
    if kept.type != found.type:
        return [
            int(row)
            for row in np.flatnonzero(np.asarray(kept.is_valid()) | np.asarray(found.is_valid()))
        ]
    same = np.asarray(pc.equal(kept, found).fill_null(False))
    neither = np.asarray(kept.is_null()) & np.asarray(found.is_null())
    if pa.types.is_floating(kept.type):  # nan is what it is
        neither |= np.asarray(pc.and_(pc.is_nan(kept), pc.is_nan(found)).fill_null(False))
    return [int(row) for row in np.flatnonzero(~(same | neither))]
