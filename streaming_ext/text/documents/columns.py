"""Columns of text in an Arrow schema, and their texts, by name or by a path through structs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.errors import UsageError
from streaming_ext.format.condition import Kind, comparable, fits, is_text
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.kept_values import asked_of, option_of

Path = tuple[str, ...]  # of a column: its name, or the names of structs and of a field


def find_column(schema: pa.Schema, column: str, *, where: str) -> Path:
    """Where a column of text lies; one of just this name goes before a path.

    Raises:
        UsageError: there is none, or it holds something else; names the columns that are there.
    """
    indices = schema.get_all_field_indices(column)
    if len(indices) > 1:
        raise _missing(schema, f"has {column!r} more than once", where)
    path = (column,) if indices else tuple(column.split("."))
    kind = kind_at(schema, path)
    if kind is None:
        raise _missing(schema, f"has no column {column!r}", where)
    if not (is_text(kind) or pa.types.is_null(kind)):
        texts = [name for name, kind in _leaves(schema) if is_text(kind)]
        raise UsageError(
            f"{where}: column {column!r} is of type {kind}, expected string. "
            f"Columns of text: {', '.join(texts) or 'none'}."
        )
    return path


def find_columns(schema: pa.Schema, columns: Sequence[str], *, where: str) -> list[Path]:
    """Where each of some columns lies.

    Raises:
        UsageError: see `find_column`.
    """
    return [find_column(schema, column, where=where) for column in columns]


def check_schema(schema: pa.Schema, options: ReadOptions, *, where: str) -> None:
    """Look for all that is read of a file, before any work.

    A column of type null holds no value in this file and reads as such, but a source without any
    text is refused.

    Raises:
        UsageError: a column is missing or holds something else, or no column can hold a text.
    """
    paths = find_columns(schema, options.columns, where=where)
    find_compared(schema, options.compared, where=where)
    if all(pa.types.is_null(kind_at(schema, path)) for path in paths):
        names = " and ".join(map(repr, options.columns))
        raise UsageError(f"{where} holds no text: every row of {names} is null.")


def find_compared(schema: pa.Schema, compared: Mapping[str, Kind], *, where: str) -> list[Path]:
    """Where each column of a condition lies.

    Raises:
        UsageError: one is not there, or holds what it cannot be compared with.
    """
    paths = []
    for column, wanted in compared.items():
        path = (column,) if schema.get_all_field_indices(column) else tuple(column.split("."))
        kind = kind_at(schema, path)
        if kind is None:
            names = ", ".join(name for name, _ in _leaves(schema))
            raise UsageError(
                f"{where} has no column {column!r}; its columns are {names}. "
                f"Mend {option_of(wanted)}."
            )
        if not fits(wanted, kind):
            raise UsageError(
                f"{where}: column {column!r} is of type {kind}, and {asked_of(wanted)}."
            )
        paths.append(path)
    return paths


def _missing(schema: pa.Schema, problem: str, where: str) -> UsageError:
    names = ", ".join(name for name, _ in _leaves(schema))
    return UsageError(f"{where} {problem}; its columns are {names}. Pass --text-column.")


def kind_at(schema: pa.Schema, path: Path) -> pa.DataType | None:
    """The type at the end of a path, None where it leads nowhere."""
    inside: pa.Schema | pa.DataType = schema
    for step in path:
        if isinstance(inside, pa.DataType) and not pa.types.is_struct(inside):
            return None
        index = inside.get_field_index(step)
        if index < 0:
            return None
        inside = inside.field(index).type
    return inside


def _leaves(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """Names and types of all columns, a struct's fields as paths."""

    def below(prefix: str, field: pa.Field) -> Iterator[tuple[str, pa.DataType]]:
        if pa.types.is_struct(field.type) and field.type.num_fields:
            for child in field.type:
                yield from below(f"{prefix}{field.name}.", child)
        else:
            yield f"{prefix}{field.name}", field.type

    for field in schema:
        yield from below("", field)


def column_at(batch: pa.RecordBatch, path: Path) -> pa.Array:
    """The column at the end of a path; null where a struct on the way is."""
    column = batch.column(batch.schema.get_field_index(path[0]))
    for step in path[1:]:
        column = pc.struct_field(column, step)
    return column


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """The columns that are read: those of the text, and those that are compared or kept."""

    texts: Sequence[Path]
    compared: Sequence[Path]

    @classmethod
    def of(cls, schema: pa.Schema, options: ReadOptions, *, where: str) -> Self:
        """Those that the options name.

        Raises:
            UsageError: one is not there, or holds something else.
        """
        return cls(
            find_columns(schema, options.columns, where=where),
            find_compared(schema, options.compared, where=where),
        )

    @property
    def text_names(self) -> list[str]:
        """What columns of text are called by those who read them."""
        return [".".join(path) for path in self.texts]

    @property
    def names(self) -> list[str]:
        """The same, with the others."""
        return list(dict.fromkeys(self.text_names + [".".join(path) for path in self.compared]))

    def of_batch(self, batch: pa.RecordBatch) -> tuple[list[pa.LargeStringArray], list[pa.Array]]:
        """The texts, and the others as they are compared: (rows,) each."""
        texts = [column_at(batch, path).cast(pa.large_string()) for path in self.texts]
        return texts, [comparable(column_at(batch, path)) for path in self.compared]
