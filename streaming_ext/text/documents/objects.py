"""Documents that are objects, of JSON or CBOR: their texts at fields or paths, or what is wrong."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.condition import Kind
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import (
    MAX_BATCH_ROWS,
    MAX_TEXT_BYTES,
    BadDocument,
    DocumentBatch,
    DocumentRows,
)
from streaming_ext.text.documents.kept_values import asked_of, common_type, option_of

MAX_RECORDS = 1024  # that `SourceFormat.records` gives at once

MAX_DEPTH = 400  # of the values of a document; parsers give up at depths of their own
MAX_ITEM_BYTES = 2 * MAX_TEXT_BYTES  # of a document: a text, and what stands beside it
TOO_LONG = f"longer than {MAX_TEXT_BYTES} bytes"
TOO_DEEP = f"values nested deeper than {MAX_DEPTH} levels"
Record = dict[str, Any]
# Of a document: the text of each column, then what each column of a condition holds.
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
# Numbers are doubles, as those of JSON are read everywhere.
TYPES = {
    "text": pa.large_string(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "any": pa.bool_(),
    "value": None,
}
_STORED = {bool: pa.bool_(), float: pa.float64(), str: pa.large_string()}


class BadValueError(Exception):
    """What is wrong with a value, and at which of its bytes."""

    def __init__(self, problem: str, byte: int = 0) -> None:
        super().__init__(problem)
        self.byte = byte


class Value(NamedTuple):
    """A value of a file, or what is wrong with it.

    Attributes:
        place: where it stands, for people.
        value: decoded; an error in place of one that cannot be.
        size: about how many bytes it takes.
        at: what names it in its file however that is cut; None where the format cannot be cut.
    """

    place: str
    value: object
    size: int = 0
    at: int | None = None


def texts_of(value: object, options: ReadOptions) -> Texts:
    """The text of a document in each column, and what is compared; None where it has none.

    Raises:
        BadValueError: it is no object, or what stands in a column is not what it must be.
    """
    document = require_object(value)
    texts: Texts = tuple(text_of(value_at(document, column), column) for column in options.columns)
    return texts + compared_of(document, options)


def require_object(value: object) -> dict[str, Any]:
    """The value, which must be an object.

    Raises:
        BadValueError: it is something else.
    """
    if not isinstance(value, dict):
        raise BadValueError(f"a value of type {_kind(value)}, expected object")
    return value


def compared_of(document: dict[str, Any], options: ReadOptions) -> Texts:
    """What the columns of a condition hold; None where there is nothing.

    Raises:
        BadValueError: one holds what it cannot be compared with.
    """
    return tuple(
        _compared(value_at(document, column), kind, column)
        for column, kind in options.compared.items()
    )


def _compared(found: Any, kind: Kind, column: str) -> str | float | bool | None:
    if found is None:
        return None
    if kind == "any":
        return True
    if isinstance(found, str) and kind in {"text", "value"}:
        return text_of(found, column)
    if isinstance(found, bool) and kind in {"boolean", "value"}:
        return found
    if type(found) in {int, float} and kind in {"number", "value"}:
        return float(str(found))  # infinite where a whole number is too large for a double
    raise BadValueError(f"{column!r} is of type {_kind(found)}, and {asked_of(kind)}")


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


def value_at(value: dict[str, Any], column: str) -> Any:
    """The field of this name, else what stands at the end of the path."""
    found: Any = value.get(column)
    if found is None and "." in column:
        found = value
        for step in column.split("."):
            found = found.get(step) if isinstance(found, dict) else None
    return found


def _kind(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)


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
        found = next((one for value in values if (one := value_at(value, column)) is not None), "")
        if not isinstance(found, str):
            raise UsageError(
                f"{where}: column {column!r} is of type {_kind(found)}, expected string. "
                f"Columns of text: {', '.join(_texts_in(values)) or 'none'}."
            )
        _require_field(values, column, f"{where} has no column {column!r}", "Pass --text-column")
    for column, kind in options.compared.items():
        problem = f"{where} has no column {column!r} in its first documents"
        _require_field(values, column, problem, f"Mend {option_of(kind)}")


def _require_field(values: Sequence[dict[str, Any]], column: str, problem: str, mend: str) -> None:
    fields = dict.fromkeys(map(str, chain.from_iterable(values)))
    if fields and not any(
        column in value or value_at(value, column) is not None for value in values
    ):
        raise UsageError(f"{problem}; its columns are {', '.join(fields)}. {mend}.")


def _texts_in(values: Sequence[dict[str, Any]]) -> list[str]:
    return list(
        dict.fromkeys(
            str(name) for value in values for name, found in value.items() if isinstance(found, str)
        )
    )


def _columns_of(
    rows: Sequence[Texts], options: ReadOptions
) -> tuple[list[pa.LargeStringArray], list[pa.Array]]:
    """Rows as an array a column of text, and an array a column that is compared."""
    types = [pa.large_string()] * len(options.columns)
    types += [TYPES[kind] for kind in options.compared.values()]
    arrays = []
    for number, name in enumerate((*options.columns, *options.compared)):
        values = [row[number] for row in rows]
        kind = types[number]
        if kind is None:  # a column that is kept: of the type that its values have
            kinds = dict.fromkeys(type(value) for value in values if value is not None)
            kind = common_type(name, [_STORED[kind] for kind in kinds])
        arrays.append(pa.array(values, kind))
    return arrays[: len(options.columns)], arrays[len(options.columns) :]


def batches_of_values(
    values: Iterable[Value],
    rows: DocumentRows,
    *,
    texts_of: Callable[[Any, ReadOptions], Texts] = texts_of,
    fraction: Callable[[], float],
) -> Iterator[DocumentBatch]:
    """The documents of values that come one by one.

    Args:
        values: in order.
        rows: of the file.
        texts_of: of a value, where the usual is not what is wanted.
        fraction: of the file that is read so far.
    """
    options = rows.options
    found: list[Texts] = []
    bad: list[BadDocument] = []
    places: list[int] = []
    size = 0

    def batch() -> Iterator[DocumentBatch]:
        (columns, compared), faults = _columns_of(found, options), tuple(bad)
        own = np.array(places) if places else None
        for one in (found, bad, places):  # before the batch is used: a text may be large
            one.clear()
        yield from rows.batches(columns, fraction(), faults, compared, own)

    for place, value, length, at in values:
        if found and (size + length > rows.batch_bytes or len(found) == MAX_BATCH_ROWS):
            yield from batch()
            size = 0
        try:
            if isinstance(value, BadValueError):
                raise value
            found.append(texts_of(value, options))
        except BadValueError as error:
            one = BadDocument(rows.row + len(found), place, str(error))
            rows.refuse(one)
            bad.append(one)
            found.append((None,) * (len(options.columns) + len(options.compared)))
        size += length
        if at is not None:
            places.append(at)
        del value
    if found:
        yield from batch()


def records_of_values(
    values: Iterable[Value], options: ReadOptions, *, name: str
) -> Iterator[list[Record]]:
    """The values that are objects, some at a time.

    Raises:
        SourceError: another is none, and such are not skipped; names its place.
    """
    records: list[Record] = []
    for place, value, *_ in values:
        if isinstance(value, dict):
            records.append(value)
        elif options.on_bad_document != "skip":
            problem = value if isinstance(value, BadValueError) else "no object"
            raise SourceError(
                f"{name}: {place}: {problem}. Mend it, or pass on_bad_document='skip'."
            )
        if len(records) == MAX_RECORDS:
            yield records
            records = []
    if records:
        yield records


def decoded(data: bytes) -> object:
    """The value that some bytes of JSON spell.

    Raises:
        BadValueError: they spell none.
    """
    if is_too_deep(data):
        raise BadValueError(TOO_DEEP)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _decoded_by_python(data)


def _decoded_by_python(data: bytes) -> object:
    """What orjson refuses: NaN, halves of surrogate pairs, or no JSON; with the place of that."""
    try:
        return DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        raise BadValueError("no valid UTF-8", error.start) from error
    except json.JSONDecodeError as error:
        at = len(error.doc[: error.pos].encode())
        raise BadValueError(f"no valid JSON ({error.msg})", at) from error
    except RecursionError as error:
        raise BadValueError(TOO_DEEP) from error


def _whole_number(digits: str) -> float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


DECODER = json.JSONDecoder(parse_int=_whole_number)


def is_too_deep(data: bytes) -> bool:
    """Whether values are nested deeper than is read; brackets within strings do not count."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    found = np.frombuffer(brackets, np.uint8)
    steps = np.where((found == ord("[")) | (found == ord("{")), 1, -1)
    return int(np.cumsum(steps).max(initial=0)) > MAX_DEPTH
