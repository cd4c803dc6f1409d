"""Columns of text in an Arrow schema, and their texts, by name or by a path through structs."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.errors import UsageError
from streaming_ext.format.condition import Kind, fits, is_text
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.kept_values import option_of, required_of

Path = tuple[str, ...]  # of a column: its name, or the names of structs and of a field


def paths_of(schema: pa.Schema, options: ReadOptions, *, where: str) -> dict[str, Path]:
    """The path of each column that the options name: of text, compared or kept.

    Raises:
        UsageError: one is missing, or holds something else; names the existing columns.
    """
    return {name: _path_of(schema, name, kind, where) for name, kind in wanted_columns(options)}


def wanted_columns(options: ReadOptions) -> list[tuple[str, Kind | None]]:
    """Each column that is read, and what it must hold: None for the text of documents."""
    return [*((name, None) for name in options.columns), *options.compared.items()]


def check_schema(schema: pa.Schema, options: ReadOptions, *, where: str) -> None:
    """Look for all columns that are read, before any work.

    A column of type null holds no value in this file and reads as such, but a source without any
    text is refused.

    Raises:
        UsageError: see `paths_of`; or no column can hold a text.
    """
    paths = paths_of(schema, options, where=where)
    if all(pa.types.is_null(kind_at(schema, paths[name])) for name in options.columns):
        names = " and ".join(map(repr, options.columns))
        raise UsageError(f"{where} holds no text: every row of {names} is null.")


def _path_of(schema: pa.Schema, column: str, wanted: Kind | None, where: str) -> Path:
    """The path of a column of text or, if something else is wanted, of one that is compared."""
    named = len(schema.get_all_field_indices(column))  # they go before a path
    path = (column,) if named else tuple(column.split("."))
    kind = kind_at(schema, path)
    if kind is None:
        problem = f"has {'more than one' if named else 'no'} column {column!r}"
        raise missing(where, problem, [name for name, _ in _leaves(schema)], wanted)
    if not fits(wanted or "text", kind):
        texts = [name for name, kind in _leaves(schema) if is_text(kind)]
        raise wrong_type(where, column, str(kind), wanted, texts)
    return path


def missing(where: str, problem: str, names: Iterable[str], wanted: Kind | None) -> UsageError:
    """The error for a file without a column of text, or of what is wanted of others."""
    advice = f"Correct {option_of(wanted)}" if wanted else "Pass --text-column"
    return UsageError(f"{where} {problem}; its columns are {', '.join(names)}. {advice}.")


def wrong_type(
    where: str, column: str, kind: str, wanted: Kind | None, texts: Iterable[str]
) -> UsageError:
    """The error for a column of another type; `texts` are the file's columns of text."""
    found = "" if wanted else f" Columns of text: {', '.join(texts) or 'none'}."
    return UsageError(
        f"{where}: column {column!r} is of type {kind}, {required_of(wanted)}.{found}"
    )


def kind_at(schema: pa.Schema, path: Path) -> pa.DataType | None:
    """The type at the end of a path, None if it leads nowhere."""
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
    """Names and types of all columns, fields of a struct as paths."""
    for field in schema:
        if pa.types.is_struct(field.type) and field.type.num_fields:
            for name, kind in _leaves(field.type):
                yield f"{field.name}.{name}", kind
        else:
            yield field.name, field.type


def column_at(batch: pa.RecordBatch, path: Path) -> pa.Array:
    """The column at the end of a path; null where a struct on the way is."""
    column = batch.column(batch.schema.get_field_index(path[0]))
    for step in path[1:]:
        column = pc.struct_field(column, step)
    return column
