"""What a JSON value says of a document: its text at a field or path, or what is wrong with it."""

from typing import Any

from streaming_ext.errors import UsageError
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import MAX_TEXT_BYTES

_KINDS = {bool: "boolean", int: "number", float: "number", list: "array", dict: "object",
          type(None): "null"}  # fmt: skip


class BadValueError(Exception):
    """What is wrong with a value, and at which of its bytes."""

    def __init__(self, problem: str, byte: int = 0) -> None:
        super().__init__(problem)
        self.byte = byte


def text_at(value: object, column: str) -> str | None:
    """The text of a document; None where it has none.

    Raises:
        BadValueError: it is no object, or what stands there is no text.
    """
    text = value_at(require_object(value), column)
    if text is None:
        return None
    if not isinstance(text, str):
        raise BadValueError(f"{column!r} is of type {_kind(text)}, expected string")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise BadValueError(f"{column!r} holds half of a surrogate pair, no character") from error
    if size > MAX_TEXT_BYTES:
        raise BadValueError(f"a text of {size} bytes, at most {MAX_TEXT_BYTES} are read")
    return text


def require_object(value: object) -> dict[str, Any]:
    """The value, which must be an object.

    Raises:
        BadValueError: it is something else.
    """
    if not isinstance(value, dict):
        raise BadValueError(f"a value of type {_kind(value)}, expected object")
    return value


def value_at(value: dict[str, Any], column: str) -> Any:
    """The field of this name, else what stands at the end of the path."""
    found: Any = value.get(column)
    if found is None and "." in column:
        found = value
        for step in column.split("."):
            found = found.get(step) if isinstance(found, dict) else None
    return found


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "string")


def check_fields(values: list[dict[str, Any]], options: ReadOptions, *, where: str) -> None:
    """Look for the text in the first documents of a file.

    Raises:
        UsageError: none of them has the field, or the first that has it holds no string there.
    """
    fields: dict[str, None] = {}
    for value in values:
        found = value_at(value, options.column)
        if found is not None and not isinstance(found, str):
            raise UsageError(
                f"{where}: column {options.column!r} is of type {_kind(found)}, expected string. "
                f"Columns of text: {', '.join(_texts_in(value)) or 'none'}."
            )
        if found is not None or options.column in value:
            return
        fields |= dict.fromkeys(value)
    if fields:
        raise UsageError(
            f"{where} has no column {options.column!r}; its columns are {', '.join(fields)}. Pass "
            "--text-column."
        )


def _texts_in(value: dict[str, Any]) -> list[str]:
    return [name for name, found in value.items() if isinstance(found, str)]
