"""Columns of text in an Arrow schema, and their texts, by name or by a path through structs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.errors import UsageError
from streaming_ext.format.condition import Kind, comparable, fits, is_text
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.kept_values import option_of, required_of

Path = tuple[str, ...]  # of a column: its name, or the names of structs and of a field


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """Paths of the columns that are read: those of the text, and those compared or kept."""

    texts: Sequence[Path]
    compared: Sequence[Path]

    @classmethod
    def of(cls, schema: pa.Schema, options: ReadOptions, *, where: str) -> Self:
        """Those that the options name.

        Raises:
            UsageError: one is missing, or holds something else; names the existing columns.
        """
        return cls(
            [_text_path(schema, column, where) for column in options.columns],
            [
                _compared_path(schema, column, kind, where)
                for column, kind in options.compared.items()
            ],
        )

    @property
    def text_names(self) -> list[str]:
        """The columns of text as readers name them."""
        return [".".join(path) for path in self.texts]

    @property
    def names(self) -> list[str]:
        """The same, with the others."""
        return list(dict.fromkeys(self.text_names + [".".join(path) for path in self.compared]))

    def of_batch(self, batch: pa.RecordBatch) -> tuple[list[pa.LargeStringArray], list[pa.Array]]:
        """The texts, and the others as they are compared: (rows,) each."""
        texts = [_column_at(batch, path).cast(pa.large_string()) for path in self.texts]
        return texts, [comparable(_column_at(batch, path)) for path in self.compared]


def check_schema(schema: pa.Schema, options: ReadOptions, *, where: str) -> None:
    """Look for all columns that are read, before any work.

    A column of type null holds no value in this file and reads as such, but a source without any
    text is refused.

    Raises:
        UsageError: see `ChosenColumns.of`; or no column can hold a text.
    """
    paths = ChosenColumns.of(schema, options, where=where).texts
    if all(pa.types.is_null(kind_at(schema, path)) for path in paths):
        names = " and ".join(map(repr, options.columns))
        raise UsageError(f"{where} holds no text: every row of {names} is null.")


def _text_path(schema: pa.Schema, column: str, where: str) -> Path:
    if len(schema.get_all_field_indices(column)) > 1:
        raise _missing(schema, f"has {column!r} more than once", "Pass --text-column", where)
    path = _path(schema, column)
    kind = kind_at(schema, path)
    if kind is None:
        raise _missing(schema, f"has no column {column!r}", "Pass --text-column", where)
    if not (is_text(kind) or pa.types.is_null(kind)):
        texts = [name for name, kind in _leaves(schema) if is_text(kind)]
        raise UsageError(
            f"{where}: column {column!r} is of type {kind}, expected string. "
            f"Columns of text: {', '.join(texts) or 'none'}."
        )
    return path


def _compared_path(schema: pa.Schema, column: str, wanted: Kind, where: str) -> Path:
    path = _path(schema, column)
    kind = kind_at(schema, path)
    if kind is None:
        raise _missing(schema, f"has no column {column!r}", f"Correct {option_of(wanted)}", where)
    if not fits(wanted, kind):
        raise UsageError(
            f"{where}: column {column!r} is of type {kind}, and {required_of(wanted)}."
        )
    return path


def _path(schema: pa.Schema, column: str) -> Path:
    """A column of just this name goes before a path."""
    return (column,) if schema.get_all_field_indices(column) else tuple(column.split("."))


def _missing(schema: pa.Schema, problem: str, advice: str, where: str) -> UsageError:
    names = ", ".join(name for name, _ in _leaves(schema))
    return UsageError(f"{where} {problem}; its columns are {names}. {advice}.")


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


def _column_at(batch: pa.RecordBatch, path: Path) -> pa.Array:
    """The column at the end of a path; null where a struct on the way is."""
    column = batch.column(batch.schema.get_field_index(path[0]))
    for step in path[1:]:
        column = pc.struct_field(column, step)
    return column
