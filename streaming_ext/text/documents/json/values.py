"""What a JSON value says of a document: its texts at fields or paths, or what is wrong with it."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from streaming_ext.errors import UsageError
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    MAX_BATCH_ROWS,
    MAX_TEXT_BYTES,
    BadDocument,
    DocumentBatch,
)

TOO_LONG = f"longer than {MAX_TEXT_BYTES} bytes"
Texts = tuple[str | None, ...]  # of a document, a column each

_KINDS = {bool: "boolean", int: "number", float: "number", list: "array", dict: "object",
          type(None): "null"}  # fmt: skip


class BadValueError(Exception):
    """What is wrong with a value, and at which of its bytes."""

    def __init__(self, problem: str, byte: int = 0) -> None:
        super().__init__(problem)
        self.byte = byte


def texts_of(value: object, options: ReadOptions) -> Texts:
    """The text of a document in each column; None where it has none.

    Raises:
        BadValueError: it is no object, or what stands in a column is no text.
    """
    document = require_object(value)
    return tuple(text_of(value_at(document, column), column) for column in options.columns)


def text_of(found: Any, column: str) -> str | None:
    """What stands in a column, which must be text.

    Raises:
        BadValueError: it is none.
    """
    if found is None:
        return None
    if not isinstance(found, str):
        raise BadValueError(f"{column!r} is of type {_kind(found)}, expected string")
    try:
        size = len(found) if found.isascii() else len(found.encode())
    except UnicodeEncodeError as error:
        raise BadValueError(f"{column!r} holds half of a surrogate pair, no character") from error
    if size > MAX_TEXT_BYTES:
        raise BadValueError(f"a text of {size} bytes, at most {MAX_TEXT_BYTES} are read")
    return found


def object_of(data: bytes) -> dict[str, Any]:
    """The object that some bytes spell.

    Raises:
        BadValueError: they spell none.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadValueError("no valid UTF-8", error.start) from error
    try:
        value = json.loads(text, parse_int=float)  # an int of 5,000 digits would be an error
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode())
        raise BadValueError(f"no valid JSON ({error.msg})", at) from error
    except RecursionError as error:
        raise BadValueError("values nested too deep") from error
    return require_object(value)


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


def check_fields(values: Sequence[dict[str, Any]], columns: Sequence[str], *, where: str) -> None:
    """Look for the text in the first documents of a file.

    Raises:
        UsageError: none of them has a column, or the first that has it holds no string there.
    """
    for column in columns:
        _check_field(values, column, where)


def _check_field(values: Sequence[dict[str, Any]], column: str, where: str) -> None:
    fields: dict[str, None] = {}
    for value in values:
        found = value_at(value, column)
        if found is not None and not isinstance(found, str):
            raise UsageError(
                f"{where}: column {column!r} is of type {_kind(found)}, expected string. "
                f"Columns of text: {', '.join(_texts_in(value)) or 'none'}."
            )
        if found is not None or column in value:
            return
        fields |= dict.fromkeys(value)
    if fields:
        raise UsageError(
            f"{where} has no column {column!r}; its columns are {', '.join(map(str, fields))}. "
            "Pass --text-column."
        )


def _texts_in(value: dict[str, Any]) -> list[str]:
    return [str(name) for name, found in value.items() if isinstance(found, str)]


def columns_of(rows: Sequence[Texts], options: ReadOptions) -> list[pa.LargeStringArray]:
    """Rows of texts as an array a column."""
    return [
        pa.array([row[number] for row in rows], pa.large_string())
        for number in range(len(options.columns))
    ]


def sample_of(texts: pa.ChunkedArray, options: ReadOptions) -> Iterator[dict[str, str]]:
    """Documents with these texts in the first of the columns that are read."""
    return ({options.columns[0]: text.as_py()} for text in texts)


def batches_of_values(
    values: Iterable[tuple[str, object]],
    rows: DocumentRows,
    *,
    texts_of: Callable[[object, ReadOptions], Texts] = texts_of,
    fraction: Callable[[], float],
) -> Iterator[DocumentBatch]:
    """The documents of values that come one by one.

    Args:
        values: each with its place in the file; in its place may stand what is wrong with it.
        rows: of the file.
        texts_of: of a value, where the usual is not what is wanted.
        fraction: of the file that is read so far.
    """
    options, batch_bytes = rows.options, rows.batch_bytes
    found: list[Texts] = []
    bad: list[BadDocument] = []
    nothing: Texts = (None,) * len(options.columns)
    size = 0

    def batch() -> Iterator[DocumentBatch]:
        columns, faults = columns_of(found, options), tuple(bad)
        found.clear()  # before the batch is used: a text may be large
        bad.clear()
        yield from rows.batches(columns, fraction(), faults)

    for place, value in values:
        try:
            if isinstance(value, BadValueError):
                raise value
            texts = texts_of(value, options)
        except BadValueError as error:
            one = BadDocument(rows.row + len(found), place, str(error))
            rows.refuse(one)
            bad.append(one)
            texts = nothing
        length = sum(len(text) if text.isascii() else len(text.encode()) for text in texts if text)
        if found and (size + length > batch_bytes or len(found) == MAX_BATCH_ROWS):
            held = [bad.pop()] if bad and bad[-1].row == rows.row + len(found) else []
            yield from batch()
            bad += held
            size = 0
        found.append(texts)
        size += length
        del value, texts
    if found:
        yield from batch()
