"""Columns of text in an Arrow schema."""

import pyarrow as pa

from streaming_ext.errors import UsageError


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def check_column(schema: pa.Schema, column: str, *, where: str) -> None:
    """Make sure that `column` is there and holds text.

    Raises:
        UsageError: it is not, naming the columns that are.
    """
    indices = schema.get_all_field_indices(column)
    if len(indices) != 1:
        problem = f"has no column {column!r}" if not indices else f"has {column!r} more than once"
        raise UsageError(
            f"{where} {problem}; its columns are {', '.join(schema.names)}. Pass --text-column."
        )
    kind = schema.field(indices[0]).type
    if not _is_text(kind):
        raise UsageError(
            f"{where}: column {column!r} is of type {kind}, expected string. "
            f"Columns of text: {', '.join(f.name for f in schema if _is_text(f.type)) or 'none'}."
        )
