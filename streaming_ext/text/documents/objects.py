"""Documents that are objects, as in JSON or CBOR: their texts in fields or at paths, or faults."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streaming_ext.base.errors import UsageError
from streaming_ext.format.condition import Kind
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import (
    missing,
    one_kind,
    required_of,
    wanted_columns,
    wrong_type,
)
from streaming_ext.text.documents.document_rows import (
    MAX_BATCH_ROWS,
    MAX_TEXT_BYTES,
    BadRow,
    DocumentBatch,
    DocumentRows,
)
from streaming_ext.text.documents.files import EndOfHeadError, Stream

MAX_RECORDS = 1024  # that `SourceFormat.records` yields at once

MAX_DEPTH = 400  # of the values of a document; parsers have limits of their own
MAX_ITEM_BYTES = 2 * MAX_TEXT_BYTES  # of a document: a text, and its other fields
TOO_LONG = f"longer than {MAX_TEXT_BYTES} bytes"
TOO_DEEP = f"values nested deeper than {MAX_DEPTH} levels"
Record = dict[str, Any]
# The values of a document: the text of each column, then the value of each compared column.
Texts = tuple[str | float | bool | None, ...]

_KINDS = {
    bool: "boolean",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
    str: "string",
}
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_MOST_DIGITS = 4000  # of a whole number; Python refuses more
# Numbers are doubles, as JSON readers everywhere have them.
TYPES: dict[Kind | None, pa.DataType | None] = {
    None: pa.large_string(),
    "text": pa.large_string(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "any": pa.bool_(),
    "value": None,  # the type of the values
}


class BadValueError(Exception):
    """The fault of a value."""


class ParsedValue(NamedTuple):
    """A value of a file, or its fault.

    Attributes:
        location: the location of the value, for display.
        value: the decoded value; an error if it cannot be decoded.
        size: the approximate size in bytes.
        position: the identity of the value in its file, however the file is cut; None if it
            cannot be cut.
    """

    location: str
    value: object
    size: int = 0
    position: int | None = None


def _texts_of(value: object, wanted: Sequence[tuple[str, Kind | None]]) -> Texts:
    """Return the text of a document in each column, and compared values; None for missing ones.

    Raises:
        BadValueError: the value is not an object, or a column does not hold the required kind.
    """
    if isinstance(value, BadValueError):
        raise value
    if not isinstance(value, dict):
        raise BadValueError(f"a value of type {_kind(value)}, expected object")
    return tuple([_checked(value_at(value, column), column, kind) for column, kind in wanted])


def _checked(found: Any, column: str, kind: Kind | None) -> str | float | bool | None:
    if found is None:
        return None
    if kind == "any":
        return True
    if isinstance(found, str) and kind in {None, "text", "value"}:
        try:
            if not found.isascii():
                found.encode()
        except UnicodeEncodeError as error:
            problem = f"{column!r} holds half of a surrogate pair, no character"
            raise BadValueError(problem) from error
        return found
    if isinstance(found, bool) and kind in {"boolean", "value"}:
        return found
    if type(found) in {int, float} and kind in {"number", "value"}:
        return float(str(found))  # infinite if a whole number is too large for a double
    raise BadValueError(f"{column!r} is of type {_kind(found)}, {required_of(kind)}")


def value_at(value: Record, column: str) -> Any:
    """Return the field of this name, else the field at the end of the path."""
    found: Any = value.get(column)
    if found is None and "." in column:
        found = value
        for step in column.split("."):
            found = found.get(step) if isinstance(found, dict) else None
    return found


def _kind(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def missing_fields(values: Iterable[Record], options: ReadOptions, *, where: str) -> dict[str, str]:
    """Look for the columns that are read in the first documents of a file, until all are found.

    Args:
        values: the documents; `EndOfHeadError` may end them.
        options: the columns that are read.
        where: the name of the file in messages.

    Returns:
        a message for each column that no document has.

    Raises:
        UsageError: no document has a text.
    """
    left = dict(wanted_columns(options))
    fields: dict[str, bool] = {}  # by name, whether any document holds a text in the field
    other = dict[str, str]()  # the first type found in a column without text
    with suppress(EndOfHeadError):
        for value in values:
            for name, found in value.items():
                fields[str(name)] = fields.get(str(name), False) or isinstance(found, str)
            for column, wanted in [*left.items()]:
                found = value_at(value, column)
                if isinstance(found, str) or (wanted and (found is not None or column in value)):
                    del left[column]
                elif found is not None:
                    other.setdefault(column, _kind(found))
            if not left:
                return {}
    texts = [name for name, holds_text in fields.items() if holds_text]
    lacking = {
        column: wrong_type(where, column, other[column], wanted, texts)
        if column in other
        else missing(where, column, fields, wanted)
        for column, wanted in left.items()
        if column in other or (fields and column not in fields)
    }
    if all(column in lacking for column in options.columns):
        raise UsageError(lacking[options.columns[0]])
    return lacking


def batches_of_values(
    values: Iterable[ParsedValue], rows: DocumentRows, stream: Stream
) -> Iterator[DocumentBatch]:
    """Yield batches of documents whose values come one by one, in order, from a stream."""
    wanted = wanted_columns(rows.options)
    found: list[Texts] = []
    bad: list[BadRow] = []
    positions: list[int] = []
    size = 0

    def batch() -> Iterator[DocumentBatch]:
        arrays = []
        for number, (name, kind) in enumerate(wanted):
            column = [row[number] for row in found]
            with one_kind(name):
                arrays.append(pa.array(column, TYPES[kind]))
            del column
        faults, known = tuple(bad), np.array(positions) if positions else None
        for one in (found, bad, positions):  # before the batch is used, since a text may be large
            one.clear()
        yield from rows.batches(arrays, stream.fraction, faults, known)

    for location, value, length, position in values:
        if found and (size + length > rows.batch_bytes or len(found) == MAX_BATCH_ROWS):
            yield from batch()
            size = 0
        try:
            found.append(_texts_of(value, wanted))
        except BadValueError as error:
            one = BadRow(rows.row + len(found), location, str(error))
            rows.refuse(one)
            bad.append(one)
            found.append((None,) * len(wanted))
        size += length
        if position is not None:
            positions.append(position)
        del value
    if found:
        yield from batch()


def records_of_values(values: Iterable[ParsedValue], rows: DocumentRows) -> Iterator[list[Record]]:
    """Yield the values that are objects, some at a time.

    Raises:
        SourceError: a value is not an object and must not be skipped; the message locates it.
    """
    records: list[Record] = []
    for location, value, *_ in values:
        if isinstance(value, dict):
            records.append(value)
        else:
            problem = value if isinstance(value, BadValueError) else "no object"
            rows.refuse(BadRow(rows.row, location, str(problem)))
        if len(records) == MAX_RECORDS:
            yield records
            records = []
    if records:
        yield records


def decoded(data: bytes) -> object:
    """Decode JSON; return the fault if it is invalid."""
    import orjson  # imported late: on a training node, `verify` works without the sources

    if is_too_deep(data):
        return BadValueError(TOO_DEEP)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass  # NaN, halves of surrogate pairs, whole numbers of many digits, or invalid JSON
    try:
        return DECODER.decode(data.decode())
    except (ValueError, RecursionError) as error:  # also invalid UTF-8
        return BadValueError(f"no valid JSON ({error})")


def _whole_number(digits: str) -> float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


DECODER = json.JSONDecoder(parse_int=_whole_number)


def is_too_deep(data: bytes) -> bool:
    """Return whether values nest deeper than `MAX_DEPTH`; brackets in strings do not count."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    found = np.frombuffer(brackets, np.uint8)
    steps = np.where((found == ord("[")) | (found == ord("{")), 1, -1)
    return int(np.cumsum(steps).max(initial=0)) > MAX_DEPTH
