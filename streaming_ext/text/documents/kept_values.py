"""Values of columns that are stored for each document: their types, and how they are put together.

A column holds texts, whole numbers, floating-point numbers or booleans, or nothing; each value may
be null. Numbers of JSON are floating-point ones, as everywhere.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.errors import UsageError, one_line
from streaming_ext.format.condition import Kind, comparable
from streaming_ext.format.provenance import MAX_VALUE_BYTES


def option_of(kind: Kind) -> str:
    """The option that names a column of this kind."""
    return "--keep-columns" if kind == "value" else "--where"


def required_of(kind: Kind | None) -> str:
    """What a column of this kind, None for text, must hold, as the end of a message."""
    if kind is None:
        return "expected string"
    if kind == "value":
        return "and --keep-columns stores texts, numbers, True and False"
    return f"and --where compares it with a {kind}"


def stored(column: pa.Array) -> pa.Array:
    """A column as it is stored: of one of the types above, or of Arrow's type of nulls alone."""
    column = comparable(column)
    kind = column.type
    if pa.types.is_string(kind):
        return column.cast(pa.large_string())
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    return column.cast(pa.float64()) if pa.types.is_floating(kind) else column


def too_long(column: pa.Array) -> list[int]:
    """The rows of a column whose text is too long to be stored."""
    if not pa.types.is_large_string(column.type):
        return []
    long = pc.greater(pc.binary_length(column), MAX_VALUE_BYTES)
    return [int(row) for row in np.flatnonzero(np.asarray(long.fill_null(False)))]


def common_type(name: str, kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The common type of columns of these types; that of nulls if none has another.

    Raises:
        UsageError: they have none.
    """
    columns = [pa.schema([(name, kind)]) for kind in (pa.null(), *kinds)]
    with one_kind(name):
        return pa.unify_schemas(columns, promote_options="permissive").field(0).type


@contextmanager
def one_kind(name: str) -> Iterator[None]:
    """Turn what Arrow says of values of several kinds into an error.

    Raises:
        UsageError: names the column.
    """
    try:
        yield
    except pa.ArrowException as error:
        raise UsageError(
            f"column {name!r} holds values of several kinds, and --keep-columns stores values of "
            f"one ({one_line(error)}). Leave it out, or correct the sources."
        ) from error


def joined(name: str, columns: Sequence[pa.Array]) -> pa.Array:
    """Columns of consecutive documents as one.

    Raises:
        UsageError: they hold values of several kinds.
    """
    kind = common_type(name, [column.type for column in columns])
    return pa.concat_arrays([as_kind(name, column, kind) for column in columns])


def as_kind(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as the common type of it and others.

    Raises:
        UsageError: that type cannot hold each of its values.
    """
    with one_kind(name):
        return column.cast(kind)


def nothing_less(column: pa.Array) -> pa.Array:
    """A column, without its type if all values are null: tables of documents give it one."""
    return pa.nulls(len(column)) if column.null_count == len(column) else column


def differing(kept: pa.Array, found: pa.Array) -> list[int]:
    """Rows in which a stored column differs from its source: (rows,) both."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, float) and math.isnan(one):
            return isinstance(other, float) and math.isnan(other)
        return one == other and isinstance(one, bool) == isinstance(other, bool)

    pairs = zip(kept.to_pylist(), found.to_pylist(), strict=True)
    return [row for row, (one, other) in enumerate(pairs) if not same(one, other)]
