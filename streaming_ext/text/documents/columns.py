"""Columns of documents: where they are in a schema, and which values are stored.

A column is named by its name, or by a path through structs. A stored column holds texts, whole
numbers, floating-point numbers or booleans, or nothing; each value may be null. Numbers of JSON are
floating-point numbers, as everywhere.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.errors import UsageError, one_line
from streaming_ext.format.condition import Kind, comparable, fits, is_text
from streaming_ext.format.provenance import MAX_VALUE_BYTES
from streaming_ext.format.spec import ReadOptions

Path = tuple[str, ...]  # to a column: its name, or the names of structs and of a field


def paths_of(schema: pa.Schema, options: ReadOptions, *, where: str) -> dict[str, Path | None]:
    """Return the path of each column that the options name; None if missing: it reads as null.

    Raises:
        UsageError: a column holds another type, or no column of text exists; the message lists the
            existing columns.
    """
    paths = {name: _path_of(schema, name, kind, where) for name, kind in wanted_columns(options)}
    if not any(paths[name] for name in options.columns):
        raise UsageError(_missing_in(schema, options.columns[0], None, where))
    return paths


def wanted_columns(options: ReadOptions) -> list[tuple[str, Kind | None]]:
    """Return each column that is read, and what it must hold: None for the text of documents."""
    return [*((name, None) for name in options.columns), *options.compared.items()]


def check_schema(schema: pa.Schema, options: ReadOptions, *, where: str) -> dict[str, str]:
    """Look for all columns that are read, before any work.

    A column of type null holds no value in this file and reads as such, but a source without any
    text is refused.

    Returns:
        a message for each missing column.

    Raises:
        UsageError: see `paths_of`; or no column can hold a text.
    """
    paths = paths_of(schema, options, where=where)
    texts = [path for name in options.columns if (path := paths[name])]
    if all(pa.types.is_null(kind_at(schema, path)) for path in texts):
        names = " and ".join(map(repr, options.columns))
        raise UsageError(f"{where} holds no text: every row of {names} is null.")
    return {
        name: _missing_in(schema, name, kind, where)
        for name, kind in wanted_columns(options)
        if paths[name] is None
    }


def _missing_in(schema: pa.Schema, column: str, wanted: Kind | None, where: str) -> str:
    return missing(where, column, [name for name, _ in _leaves(schema)], wanted)


def _path_of(schema: pa.Schema, column: str, wanted: Kind | None, where: str) -> Path | None:
    """Return the path of a column of text, or of a column of the kind `wanted`."""
    named = len(schema.get_all_field_indices(column))  # names take precedence over paths
    if named > 1:
        raise UsageError(f"{where} has more than one column {column!r}. Leave the file out.")
    path = (column,) if named else tuple(column.split("."))
    kind = kind_at(schema, path)
    if kind is None:
        return None
    if not fits(wanted or "text", kind):
        texts = [name for name, kind in _leaves(schema) if is_text(kind)]
        raise UsageError(wrong_type(where, column, str(kind), wanted, texts))
    return path


def missing(where: str, column: str, names: Iterable[str], wanted: Kind | None) -> str:
    """Return the message about a file without a column of text, or of the kind `wanted`."""
    advice = f"Correct {option_of(wanted)}" if wanted else "Pass --text-column"
    columns = ", ".join(map(in_line, names)) or "none"
    return f"{where} has no column {column!r}; its columns are {columns}. {advice}."


def wrong_type(
    where: str, column: str, kind: str, wanted: Kind | None, texts: Iterable[str]
) -> str:
    """Return the message about a column of another type; `texts` are the columns of text."""
    found = "" if wanted else f" Columns of text: {', '.join(map(in_line, texts)) or 'none'}."
    required = required_of(wanted)
    return f"{where}: column {column!r} is of type {in_line(kind)}, {required}.{found}"


def in_line(name: str) -> str:
    """Return a name that a file gives, escaped if it would break the line of a message."""
    return name if name.isprintable() else repr(name)


def kind_at(schema: pa.Schema, path: Path) -> pa.DataType | None:
    """Return the type at the end of a path; None if the path leads nowhere."""
    inside: pa.Schema | pa.DataType = schema
    for step in path:
        if isinstance(inside, pa.DataType) and not pa.types.is_struct(inside):
            return None
        index = inside.get_field_index(step)
        if index < 0:
            return None
        inside = inside.field(index).type
    return inside


def _leaves(schema: pa.Schema | pa.StructType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the names and types of all columns, with fields of a struct as paths."""
    for field in schema:
        if pa.types.is_struct(field.type) and field.type.num_fields:
            for name, kind in _leaves(field.type):
                yield f"{field.name}.{name}", kind
        else:
            yield field.name, field.type


def column_at(batch: pa.RecordBatch, path: Path | None) -> pa.Array:
    """Return the column at the end of a path; null without a path or where a struct is null."""
    if path is None:
        return pa.nulls(len(batch))
    column = batch.column(batch.schema.get_field_index(path[0]))
    for step in path[1:]:
        column = pc.struct_field(column, step)
    return column


def option_of(kind: Kind) -> str:
    """Return the option that names a column of this kind."""
    return "--keep-columns" if kind == "value" else "--where"


def required_of(kind: Kind | None) -> str:
    """Return the end of a message that says what a column of this kind (None: text) must hold."""
    if kind is None:
        return "expected string"
    if kind == "value":
        return "and --keep-columns stores texts, numbers, True and False"
    return f"and --where compares it with a {kind}"


def stored(column: pa.Array) -> pa.Array:
    """Return a column as it is stored: of one of the types above, or of Arrow's null type."""
    column = comparable(column)
    kind = column.type
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    return column.cast(pa.float64()) if pa.types.is_floating(kind) else column


def too_long(column: pa.Array) -> list[int]:
    """Return the rows of a column whose text is too long to be stored."""
    if not pa.types.is_large_string(column.type):
        return []
    long = pc.greater(pc.binary_length(column), MAX_VALUE_BYTES)
    return [int(row) for row in np.flatnonzero(np.asarray(long.fill_null(False)))]


def common_type(name: str, kinds: Sequence[pa.DataType]) -> pa.DataType:
    """Return the common type of columns of these types; the null type if no other is among them.

    Raises:
        UsageError: the types have no common type.
    """
    columns = [pa.schema([(name, kind)]) for kind in (pa.null(), *kinds)]
    with one_kind(name):
        return pa.unify_schemas(columns, promote_options="permissive").field(0).type


@contextmanager
def one_kind(name: str) -> Iterator[None]:
    """Turn Arrow's error about values of several kinds into a usage error.

    Raises:
        UsageError: there are several kinds; the message names the column.
    """
    try:
        yield
    except pa.ArrowException as error:
        raise UsageError(
            f"column {name!r} holds values of several kinds, and --keep-columns stores values of "
            f"one ({one_line(error)}). Leave it out, or correct the sources."
        ) from error


def joined(name: str, columns: Sequence[pa.Array]) -> pa.Array:
    """Join the columns of consecutive documents.

    Raises:
        UsageError: the columns hold values of several kinds.
    """
    kind = common_type(name, [column.type for column in columns])
    return pa.concat_arrays([as_kind(name, column, kind) for column in columns])


def as_kind(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to the common type of it and others.

    Raises:
        UsageError: the type cannot hold each of its values.
    """
    with one_kind(name):
        return column.cast(kind)


def untyped_if_null(column: pa.Array) -> pa.Array:
    """Drop the type of a column whose values are all null: tables of documents give it one."""
    return pa.nulls(len(column)) if column.null_count == len(column) else column


def differing(kept: pa.Array, found: pa.Array) -> list[int]:
    """Return the rows in which a stored column differs from its source; both are (rows,)."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, float) and math.isnan(one):
            return isinstance(other, float) and math.isnan(other)
        return one == other and isinstance(one, bool) == isinstance(other, bool)

    pairs = zip(kept.to_pylist(), found.to_pylist(), strict=True)
    return [row for row, (one, other) in enumerate(pairs) if not same(one, other)]


def cast_if_possible(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values to another type; a value that does not fit becomes null."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        half = len(values) // 2
        if not half:
            return pa.nulls(1, kind)
        halves = values[:half], values[half:]
        return pa.concat_arrays([cast_if_possible(each, kind) for each in halves])
