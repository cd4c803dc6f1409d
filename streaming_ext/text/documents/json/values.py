"""What a JSON value says of a document: its texts at fields or paths, or what is wrong with it."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from streaming_ext.errors import UsageError
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.json.depth import MAX_DEPTH, is_too_deep
from streaming_ext.text.documents.kept_values import asked_of, common_type, option_of
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    MAX_BATCH_ROWS,
    MAX_TEXT_BYTES,
    BadDocument,
    DocumentBatch,
)
from streaming_ext.text.documents.text_array import text_of_bytes
from streaming_ext.text.filters.condition import Kind

TOO_LONG = f"longer than {MAX_TEXT_BYTES} bytes"
TOO_DEEP = f"values nested deeper than {MAX_DEPTH} levels"
# A larger text may be the bytes of valid UTF-8: as characters, it takes up to four times as much.
LARGE_TEXT_BYTES = 2**20
# Of a document: the text of each column, then what each column of a condition holds.
Texts = tuple[str | bytes | float | bool | None, ...]

_KINDS = {bool: "boolean", int: "number", float: "number", list: "array", dict: "object",
          type(None): "null"}  # fmt: skip


# As numbers of JSON are read everywhere: as doubles.
TYPES = {"text": pa.large_string(), "number": pa.float64(), "boolean": pa.bool_(),
         "any": pa.bool_(), "value": None}  # fmt: skip


_DECODER = json.JSONDecoder(parse_int=float)  # an int of 5,000 digits would be an error


class LargeText(bytes):
    """A text that a decoder left as the bytes of valid UTF-8."""


_STORED: dict[type, pa.DataType] = {
    bool: pa.bool_(), float: pa.float64(), str: pa.large_string(), LargeText: pa.large_string()
}  # fmt: skip


class BadValueError(Exception):
    """What is wrong with a value, and at which of its bytes."""

    def __init__(self, problem: str, byte: int = 0) -> None:
        super().__init__(problem)
        self.byte = byte


def texts_of(value: object, options: ReadOptions) -> Texts:
    """The text of a document in each column, and what is compared; None where it has none.

    Raises:
        BadValueError: it is no object, or what stands in a column is not what it must be.
    """
    document = require_object(value)
    texts: Texts = tuple(text_of(value_at(document, column), column) for column in options.columns)
    return texts + compared_of(document, options)


def compared_of(document: dict[str, Any] | None, options: ReadOptions) -> Texts:
    """What the columns of a condition hold; None where there is nothing.

    Raises:
        BadValueError: one holds what it cannot be compared with.
    """
    if document is None:
        return (None,) * len(options.compared)
    return tuple(
        _compared(value_at(document, column), kind, column)
        for column, kind in options.compared.items()
    )


def _compared(found: Any, kind: Kind, column: str) -> str | bytes | float | bool | None:
    if found is None:
        return None
    if kind == "any":
        return True
    if isinstance(found, str | LargeText) and kind in {"text", "value"}:
        return text_of(found, column)
    if kind == "value" and isinstance(found, bool | int | float):
        return found if isinstance(found, bool) else float(found)
    if kind == "number" and isinstance(found, int | float) and not isinstance(found, bool):
        return float(found)
    if kind == "boolean" and isinstance(found, bool):
        return found
    raise BadValueError(f"{column!r} is of type {_kind(found)}, and {asked_of(kind)}")


def text_of(found: Any, column: str) -> str | bytes | None:
    """What stands in a column, which must be text.

    Raises:
        BadValueError: it is none.
    """
    if found is None:
        return None
    if not isinstance(found, str | LargeText):
        raise BadValueError(f"{column!r} is of type {_kind(found)}, expected string")
    try:
        size = _num_bytes(found)
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
    if is_too_deep(data):
        raise BadValueError(TOO_DEEP)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadValueError("no valid UTF-8", error.start) from error
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode())
        raise BadValueError(f"no valid JSON ({error.msg})", at) from error
    except RecursionError as error:
        raise BadValueError(TOO_DEEP) from error
    return require_object(value)


def _num_bytes(text: str | bytes) -> int:
    """Of a text, in UTF-8."""
    return len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode())


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


def check_fields(
    values: Sequence[dict[str, Any]],
    options: ReadOptions,
    *,
    where: str,
    columns: Sequence[str] | None = None,
) -> None:
    """Look for the text, and for what is compared, in the first documents of a file.

    Args:
        values: the documents.
        options: which text to read.
        where: what messages call the file.
        columns: those of the options that lie in such values; all by default.

    Raises:
        UsageError: none of them has a column, or the first that has it holds no string there.
    """
    for column in options.columns if columns is None else columns:
        _check_field(values, column, where)
    for column, kind in options.compared.items():
        fields = dict.fromkeys(chain.from_iterable(values))
        if fields and all(value_at(value, column) is None for value in values) and not (
            any(column in value for value in values)
        ):  # fmt: skip
            raise UsageError(
                f"{where} has no column {column!r} in its first documents; their columns are "
                f"{', '.join(map(str, fields))}. Mend {option_of(kind)}."
            )


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


def columns_of(
    rows: Sequence[Texts], options: ReadOptions
) -> tuple[list[pa.LargeStringArray], list[pa.Array]]:
    """Rows as an array a column of text, and an array a column that is compared."""
    types = [pa.large_string()] * len(options.columns)
    types += [TYPES[kind] for kind in options.compared.values()]
    names = (*options.columns, *options.compared)
    arrays = [_column([row[n] for row in rows], kind, names[n]) for n, kind in enumerate(types)]
    return arrays[: len(options.columns)], arrays[len(options.columns) :]


def _column(
    values: Sequence[str | bytes | float | bool | None], kind: pa.DataType | None, name: str
) -> pa.Array:
    if len(values) == 1 and isinstance(values[0], bytes):
        return text_of_bytes(values[0])  # as it lies in memory: it may be large
    if kind is None:
        return _values(values, name)
    return pa.array(values, kind)


def _values(values: Sequence[str | bytes | float | bool | None], name: str) -> pa.Array:
    """What a column holds that is kept: of the type that its values have."""
    kinds = dict.fromkeys(type(value) for value in values if value is not None)
    kind = common_type(name, [_STORED[kind] for kind in kinds])
    return pa.array(values, kind)


def nothing_of(options: ReadOptions) -> Texts:
    """What a row holds that holds nothing."""
    return (None,) * (len(options.columns) + len(options.compared))


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
    nothing, num_texts = nothing_of(options), len(options.columns)
    size = 0

    def batch() -> Iterator[DocumentBatch]:
        (columns, compared), faults = columns_of(found, options), tuple(bad)
        found.clear()  # before the batch is used: a text may be large
        bad.clear()
        yield from rows.batches(columns, fraction(), faults, compared)

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
        length = sum(
            _num_bytes(text) for text in texts[:num_texts] if isinstance(text, str | bytes)
        )
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
